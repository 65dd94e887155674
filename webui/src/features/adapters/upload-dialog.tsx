import { ProgressBar } from "@heroui/react";
import { useState } from "react";

import { ApiError } from "@/api/errors";
import { CheckboxInput } from "@/components/checkbox-input";
import { TextInput } from "@/components/fields";
import { FormDialog } from "@/components/form-dialog";
import { formError } from "@/components/form-error";
import { NAME_RULE } from "@/components/name-rule";

import { useUploadAdapter } from "./api/upload-adapter";
import { FilePicker } from "./file-picker";
import { ReportFindings } from "./report-findings";

interface UploadDialogProps {
  tenantId: string;
  fixedName?: string;
  onClose: () => void;
  onUploaded: (adapterId: string) => void;
}

export function UploadDialog({ tenantId, fixedName, onClose, onUploaded }: UploadDialogProps) {
  const [name, setName] = useState(fixedName ?? "");
  const [files, setFiles] = useState<readonly File[]>([]);
  const [promote, setPromote] = useState(true);
  const [confirmBase, setConfirmBase] = useState(false);
  const upload = useUploadAdapter(tenantId);
  const { fields, rest } = formError(upload.error, ["name", "files"]);
  const report = rest instanceof ApiError ? rest.report : null;
  const isBaseUnknown = report?.problems?.some(({ code }) => code === "base_unconfirmed") ?? false;

  const choose = (chosen: readonly File[]) => {
    upload.reset();
    setConfirmBase(false);
    setFiles(chosen);
  };

  return (
    <FormDialog
      title={fixedName === undefined ? "Upload an adapter" : `New version of ${fixedName}`}
      submitLabel="Upload"
      isOpen
      onClose={() => {
        upload.cancel();
        onClose();
      }}
      onSubmit={() => upload.mutate({ name, files, confirmBase, promote }, { onSuccess: ({ adapter }) => onUploaded(adapter.id) })}
      isPending={upload.isPending}
      fieldErrors={fields}
      error={report ? null : rest}
    >
      {fixedName === undefined && (
        <TextInput
          label="Name"
          name="name"
          autoFocus
          isRequired
          rule={NAME_RULE}
          description="Requests use it after the base model's name. A name that exists gets a new version."
          value={name}
          onChange={setName}
        />
      )}
      {fixedName !== undefined && (
        <CheckboxInput isSelected={promote} onChange={setPromote}>
          Serve it as soon as it is ready
        </CheckboxInput>
      )}
      <FilePicker files={files} onChoose={choose} error={fields.files} isDisabled={upload.isPending} />
      {upload.isPending && <UploadProgress share={upload.progress} />}
      {report && (
        <div role="alert" className="rounded-md border border-danger/30 bg-danger-soft px-3 py-2 text-foreground">
          <p className="mb-2 font-medium">Refused, and nothing of it was kept:</p>
          <ReportFindings report={report} />
        </div>
      )}
      {(isBaseUnknown || confirmBase) && (
        <CheckboxInput isSelected={confirmBase} onChange={setConfirmBase}>
          It was trained on the base model that is served here
        </CheckboxInput>
      )}
    </FormDialog>
  );
}

/** Sending is the part that can be measured; then the platform reads what it got. */
function UploadProgress({ share }: { share: number }) {
  const isSent = share >= 1;
  return (
    <ProgressBar
      aria-label="Upload"
      size="sm"
      value={share * 100}
      isIndeterminate={isSent}
      valueLabel={isSent ? "checking…" : `${Math.floor(share * 100)} %`}
    >
      <div className="flex justify-between text-xs text-muted">
        <span>{isSent ? "Sent" : "Sending"}</span>
        <ProgressBar.Output />
      </div>
      <ProgressBar.Track>
        <ProgressBar.Fill />
      </ProgressBar.Track>
    </ProgressBar>
  );
}
