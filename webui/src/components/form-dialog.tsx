import { Button, Form, Modal } from "@heroui/react";
import type { ReactNode } from "react";

import { ErrorNote } from "./notes";

interface FormDialogProps {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  onSubmit: () => void;
  submitLabel: string;
  isPending: boolean;
  /** By the field's name; each goes away when a person changes the field. */
  fieldErrors?: Record<string, string>;
  /** What went wrong with the whole, not with one field. */
  error: Error | null;
  children: ReactNode;
}

/** A dialog with one form. Stays open until whoever opened it closes it, so that a refusal can be corrected. */
export function FormDialog(props: FormDialogProps) {
  const { title, isOpen, onClose, onSubmit, submitLabel, isPending, fieldErrors, error, children } = props;
  return (
    <Modal.Backdrop isOpen={isOpen} onOpenChange={(open) => !open && onClose()} isDismissable={false}>
      <Modal.Container size="sm">
        <Modal.Dialog>
          <Form
            className="contents"
            validationErrors={fieldErrors}
            onSubmit={(event) => {
              event.preventDefault();
              onSubmit();
            }}
          >
            <Modal.Header>
              <Modal.Heading>{title}</Modal.Heading>
            </Modal.Header>
            <Modal.Body className="flex flex-col gap-4 overflow-visible p-1">
              {children}
              {error && <ErrorNote error={error} />}
            </Modal.Body>
            <Modal.Footer>
              <Button variant="outline" onPress={onClose}>
                Cancel
              </Button>
              <Button type="submit" isPending={isPending}>
                {submitLabel}
              </Button>
            </Modal.Footer>
          </Form>
        </Modal.Dialog>
      </Modal.Container>
    </Modal.Backdrop>
  );
}
