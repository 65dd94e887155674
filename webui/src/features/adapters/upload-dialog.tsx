import { ProgressBar } from "@heroui/react";
import { useState } from "react";

import { ApiError } from "@/api/errors";
import { TextInput } from "@/components/fields";
import { FormDialog } from "@/components/form-dialog";
import { formError } from "@/components/form-error";

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
  const upload = useUploadAdapter(tenantId);
  const { fields, rest } = formError(upload.error, ["name", "files"]);
  const report = upload.error instanceof ApiError ? upload.error.report : null;

  const choose = (chosen: readonly File[]) => {
    upload.reset();
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
      onSubmit={() => upload.mutate({ name, files }, { onSuccess: ({ adapter }) => onUploaded(adapter.id) })}
      isPending={upload.isPending}
      fieldErrors={fields}
      error={rest}
    >
      {fixedName === undefined && (
        <TextInput
          label="Name"
          name="name"
          autoFocus
          isRequired
          pattern="[a-z0-9][a-z0-9._\-]{0,62}"
          description="Lower-case letters, digits, dots, dashes. A name that exists gets a new version."
          value={name}
          onChange={setName}
        />
      )}
      <FilePicker files={files} onChoose={choose} error={fields.files} isDisabled={upload.isPending} />
      {upload.isPending && <UploadProgress share={upload.progress} />}
      {report && <ReportFindings report={report} />}
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
