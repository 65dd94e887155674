import { Button, Form, toast } from "@heroui/react";
import { useState } from "react";

import { formError } from "@/components/form-error";
import { ErrorNote } from "@/components/notes";

import { useSetQuota } from "./api/set-quota";
import { LimitField } from "./limit-field";
import { choiceOf, limitOf, type Limits } from "./limits";

interface QuotaFormProps {
  tenantId: string;
  quota: Limits;
  canEdit: boolean;
}

export function QuotaForm({ tenantId, quota, canEdit }: QuotaFormProps) {
  const [requests, setRequests] = useState(choiceOf(quota.requests_per_minute));
  const [tokens, setTokens] = useState(choiceOf(quota.tokens_per_minute));
  const save = useSetQuota(tenantId);
  const { fields, rest } = formError(save.error, ["requests_per_minute", "tokens_per_minute"]);

  const requestLimit = limitOf(requests);
  const tokenLimit = limitOf(tokens);
  const isComplete = requestLimit !== undefined && tokenLimit !== undefined;
  const isChanged = requestLimit !== quota.requests_per_minute || tokenLimit !== quota.tokens_per_minute;

  const submit = () => {
    if (!isComplete) return;
    save.mutate(
      { requests_per_minute: requestLimit, tokens_per_minute: tokenLimit },
      { onSuccess: () => toast.success("Quota saved") },
    );
  };

  return (
    <Form
      className="flex flex-col gap-5"
      validationErrors={fields}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <LimitField
        label="Requests per minute"
        name="requests_per_minute"
        choice={requests}
        onChange={setRequests}
        isDisabled={!canEdit}
      />
      <LimitField
        label="Tokens per minute"
        name="tokens_per_minute"
        choice={tokens}
        onChange={setTokens}
        isDisabled={!canEdit}
      />
      {rest && <ErrorNote error={rest} />}
      {canEdit && (
        <div>
          <Button type="submit" isDisabled={!isComplete || !isChanged} isPending={save.isPending}>
            Save quota
          </Button>
        </div>
      )}
    </Form>
  );
}
