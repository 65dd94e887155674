import { useState } from "react";

import { TextInput } from "@/components/fields";
import { FormDialog } from "@/components/form-dialog";
import { formError } from "@/components/form-error";
import { NAME_RULE } from "@/components/name-rule";

import { TIME_ZONES } from "./time-zones";

export interface TenantForm {
  name: string;
  displayName: string;
  timezone: string;
}

interface TenantFormDialogProps {
  title: string;
  submitLabel: string;
  initial: TenantForm;
  /** A tenant's name is part of how it is known elsewhere: it is given once. */
  isNameFixed?: boolean;
  onSubmit: (form: TenantForm) => void;
  onClose: () => void;
  isPending: boolean;
  error: Error | null;
}

export function TenantFormDialog(props: TenantFormDialogProps) {
  const [form, setForm] = useState(props.initial);
  const { fields, rest } = formError(props.error, ["name", "display_name", "timezone"]);

  return (
    <FormDialog
      title={props.title}
      submitLabel={props.submitLabel}
      isOpen
      onClose={props.onClose}
      onSubmit={() => props.onSubmit(form)}
      isPending={props.isPending}
      fieldErrors={fields}
      error={rest}
    >
      {!props.isNameFixed && (
        <TextInput
          label="Name"
          name="name"
          autoFocus
          isRequired
          rule={NAME_RULE}
          description="How it is known everywhere. It cannot be changed later."
          value={form.name}
          onChange={(name) => setForm({ ...form, name })}
        />
      )}
      <TextInput
        label="Display name"
        name="display_name"
        autoFocus={props.isNameFixed}
        isRequired={props.isNameFixed}
        maxLength={200}
        description={props.isNameFixed ? undefined : "Left empty, it is the name."}
        value={form.displayName}
        onChange={(displayName) => setForm({ ...form, displayName })}
      />
      <TextInput
        label="Time zone"
        name="timezone"
        isRequired
        suggestions={TIME_ZONES}
        description="Its billing days and months begin at midnight there."
        value={form.timezone}
        onChange={(timezone) => setForm({ ...form, timezone })}
      />
    </FormDialog>
  );
}
