import { useId } from "react";

import { UploadIcon } from "@/components/icons";
import { formatBytes } from "@/format/quantities";

interface FilePickerProps {
  files: readonly File[];
  onChoose: (files: readonly File[]) => void;
  error?: string;
  isDisabled: boolean;
}

/** The browser's own file field lies invisible over the whole area: it takes clicks, keys and dropped files by itself. */
export function FilePicker({ files, onChoose, error, isDisabled }: FilePickerProps) {
  const id = useId();
  return (
    <div>
      <label htmlFor={id} className="mb-1 block text-sm font-medium">
        Files
      </label>
      <div className="relative rounded-md border border-dashed border-border-tertiary px-4 py-5 text-center transition-colors focus-within:border-accent focus-within:bg-accent-soft hover:bg-default/40">
        <input
          id={id}
          type="file"
          multiple
          required
          disabled={isDisabled}
          accept=".zip,.tar,.gz,.tgz,.json,.safetensors"
          aria-describedby={`${id}-hint`}
          className="absolute inset-0 cursor-pointer opacity-0"
          onChange={(event) => onChoose([...(event.target.files ?? [])])}
        />
        <UploadIcon className="mx-auto mb-1.5 size-5 text-muted" />
        {files.length === 0 ? (
          <p>Choose files or drop them here</p>
        ) : (
          <ul className="text-start">
            {files.map((file) => (
              <li key={file.name} className="flex justify-between gap-3">
                <span className="truncate font-mono text-xs">{file.name}</span>
                <span className="text-xs whitespace-nowrap text-muted">{formatBytes(file.size)}</span>
              </li>
            ))}
          </ul>
        )}
      </div>
      <p id={`${id}-hint`} className="mt-1 text-xs text-muted">
        A zip or tar of a PEFT folder, or adapter_config.json together with adapter_model.safetensors.
      </p>
      {error && (
        <p role="alert" className="mt-1 text-xs text-danger">
          {error}
        </p>
      )}
    </div>
  );
}
