import { AlertDialog, Button, type ButtonProps } from "@heroui/react";
import { type ReactNode, useState } from "react";

import { ErrorNote } from "./notes";

interface ConfirmButtonProps {
  children: ReactNode;
  title: string;
  /** What will happen, and whether it can be undone. */
  consequence: ReactNode;
  confirmLabel: string;
  /** Throws when it failed; the dialog then stays and says why. */
  onConfirm: () => Promise<unknown>;
  variant?: ButtonProps["variant"];
  confirmVariant?: ButtonProps["variant"];
  className?: string;
}

/** A button for what should not happen by accident. */
export function ConfirmButton(props: ConfirmButtonProps) {
  const { children, title, consequence, confirmLabel, onConfirm, className } = props;
  const { variant = "ghost", confirmVariant = "danger" } = props;
  const [isOpen, setOpen] = useState(false);
  const [isPending, setPending] = useState(false);
  const [error, setError] = useState<Error | null>(null);

  const confirm = async () => {
    setPending(true);
    setError(null);
    try {
      await onConfirm();
      setOpen(false);
    } catch (failure) {
      setError(failure instanceof Error ? failure : new Error(String(failure)));
    } finally {
      setPending(false);
    }
  };

  const change = (open: boolean) => {
    setError(null);
    setOpen(open);
  };

  return (
    <>
      <Button size="sm" variant={variant} className={className} onPress={() => change(true)}>
        {children}
      </Button>
      <AlertDialog.Backdrop isOpen={isOpen} onOpenChange={change} isKeyboardDismissDisabled={false}>
        <AlertDialog.Container size="sm">
          <AlertDialog.Dialog>
            <AlertDialog.Header>
              <AlertDialog.Heading>{title}</AlertDialog.Heading>
            </AlertDialog.Header>
            <AlertDialog.Body className="flex flex-col gap-3">
              <div>{consequence}</div>
              {error && <ErrorNote error={error} />}
            </AlertDialog.Body>
            <AlertDialog.Footer>
              <Button variant="outline" onPress={() => change(false)}>
                Cancel
              </Button>
              <Button variant={confirmVariant} isPending={isPending} onPress={() => void confirm()}>
                {confirmLabel}
              </Button>
            </AlertDialog.Footer>
          </AlertDialog.Dialog>
        </AlertDialog.Container>
      </AlertDialog.Backdrop>
    </>
  );
}
