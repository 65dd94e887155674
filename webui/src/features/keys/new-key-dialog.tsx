import { Button, Modal } from "@heroui/react";

import type { CreatedKey } from "@/api/types";
import { CopyButton } from "@/components/copy-button";

/** The one time that a key is seen. It closes only by its button, and then the key is gone from the page too. */
export function NewKeyDialog({ created, onClose }: { created: CreatedKey; onClose: () => void }) {
  return (
    <Modal.Backdrop isOpen isDismissable={false} isKeyboardDismissDisabled>
      <Modal.Container size="md">
        <Modal.Dialog>
          <Modal.Header>
            <Modal.Heading>Key “{created.name}” is ready</Modal.Heading>
          </Modal.Header>
          <Modal.Body className="flex flex-col gap-3 p-1">
            <p>Copy it now: it is shown only this once and cannot be brought back.</p>
            <div className="flex flex-wrap items-center gap-2 rounded-md border border-border bg-surface-secondary p-2">
              <code data-testid="new-key" className="min-w-0 flex-1 font-mono text-xs break-all text-foreground select-all">
                {created.key}
              </code>
              <CopyButton text={created.key} what="key" />
            </div>
          </Modal.Body>
          <Modal.Footer>
            <Button onPress={onClose}>I have copied it</Button>
          </Modal.Footer>
        </Modal.Dialog>
      </Modal.Container>
    </Modal.Backdrop>
  );
}
