import { Button } from "@heroui/react";
import { useState } from "react";

import { TextInput } from "@/components/fields";
import { FormDialog } from "@/components/form-dialog";
import { formError } from "@/components/form-error";
import { PlusIcon } from "@/components/icons";

import { useCreateKey } from "./api/create-key";
import { NewKeyDialog } from "./new-key-dialog";

const EMPTY = { name: "", expires: "", models: "" };

export function CreateKeyButton({ tenantId }: { tenantId: string }) {
  const [isOpen, setOpen] = useState(false);
  const [form, setForm] = useState(EMPTY);
  const create = useCreateKey(tenantId);
  const { fields, rest } = formError(create.error, ["name", "expires_at", "allowed_models"]);

  const open = () => {
    create.reset();
    setForm(EMPTY);
    setOpen(true);
  };

  const submit = () => {
    const models = form.models.split(/[\s,]+/).filter(Boolean);
    create.mutate(
      {
        name: form.name.trim(),
        expires_at: form.expires === "" ? null : new Date(form.expires).toISOString(),
        allowed_models: models.length > 0 ? models : null,
      },
      { onSuccess: () => setOpen(false) },
    );
  };

  return (
    <>
      <Button size="sm" onPress={open}>
        <PlusIcon /> New key
      </Button>
      {isOpen && (
        <FormDialog
          title="New API key"
          submitLabel="Create key"
          isOpen
          onClose={() => setOpen(false)}
          onSubmit={submit}
          isPending={create.isPending}
          fieldErrors={fields}
      error={rest}
        >
          <TextInput
            label="Name"
            name="name"
            autoFocus
            isRequired
            maxLength={200}
            description="What will use it, so that you know it again."
            value={form.name}
            onChange={(name) => setForm({ ...form, name })}
          />
          <TextInput
            label="Expires"
            name="expires_at"
            type="datetime-local"
            description="Optional, in your own time zone."
            value={form.expires}
            onChange={(expires) => setForm({ ...form, expires })}
          />
          <TextInput
            label="Allowed models"
            name="allowed_models"
            placeholder="every model of the tenant"
            description="Optional: model names, separated by commas."
            value={form.models}
            onChange={(models) => setForm({ ...form, models })}
          />
        </FormDialog>
      )}
      {create.data && <NewKeyDialog created={create.data} onClose={() => create.reset()} />}
    </>
  );
}
