/** What a place says when it has nothing, or something went wrong. */
import { Button } from "@heroui/react";
import type { ReactNode } from "react";

import { ErrorIcon } from "./icons";

export function EmptyNote({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="flex flex-col items-center gap-1 px-4 py-10 text-center">
      <p className="font-medium">{title}</p>
      {children != null && <div className="max-w-md text-muted">{children}</div>}
    </div>
  );
}

export function ErrorNote({ error, onRetry }: { error: Error; onRetry?: () => void }) {
  return (
    <div
      role="alert"
      className="flex items-center gap-2 rounded-md border border-danger/30 bg-danger-soft px-3 py-2 text-danger-soft-foreground"
    >
      <ErrorIcon />
      <p className="min-w-0 flex-1 break-words">{error.message}</p>
      {onRetry && (
        <Button size="sm" variant="outline" onPress={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}
