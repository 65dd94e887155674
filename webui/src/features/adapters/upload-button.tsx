import { Button, type ButtonProps } from "@heroui/react";
import { useState } from "react";

import { UploadIcon } from "@/components/icons";

import { UploadDialog } from "./upload-dialog";

interface UploadButtonProps {
  tenantId: string;
  label: string;
  /** The adapter that gets a new version; without it, a person names one. */
  name?: string;
  onUploaded: (adapterId: string) => void;
  variant?: ButtonProps["variant"];
}

export function UploadButton({ tenantId, label, name, onUploaded, variant }: UploadButtonProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button size="sm" variant={variant} onPress={() => setOpen(true)}>
        <UploadIcon /> {label}
      </Button>
      {isOpen && (
        <UploadDialog
          tenantId={tenantId}
          fixedName={name}
          onClose={() => setOpen(false)}
          onUploaded={(adapterId) => {
            setOpen(false);
            onUploaded(adapterId);
          }}
        />
      )}
    </>
  );
}
