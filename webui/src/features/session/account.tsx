import { Button } from "@heroui/react";

import type { User } from "@/api/types";

import { useSignOut } from "./api/sign-out";

export function Account({ user, onSignedOut }: { user: User; onSignedOut: () => void }) {
  const signOut = useSignOut();
  return (
    <div className="flex items-center justify-between gap-2 md:border-t md:border-separator md:px-2 md:pt-3">
      <div className="min-w-0 max-sm:sr-only">
        <div className="truncate font-medium">{user.username}</div>
        <div className="truncate text-xs text-muted">{user.role.replaceAll("_", " ")}</div>
      </div>
      <Button size="sm" variant="ghost" isPending={signOut.isPending} onPress={() => signOut.mutate(undefined, { onSuccess: onSignedOut })}>
        Sign out
      </Button>
    </div>
  );
}
