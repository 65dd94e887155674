import type { AdapterDetail } from "@/api/types";
import { ConfirmButton } from "@/components/confirm-button";

import { useServing } from "./api/change-serving";

/** Undoes the last step, where there is one to undo. */
export function RollBackButton({ tenantId, adapter }: { tenantId: string; adapter: AdapterDetail }) {
  const serving = useServing(tenantId, adapter.id);
  const target = adapter.canary_version ? adapter.active_version : adapter.previous_version;
  if (!target) return null;
  return (
    <ConfirmButton
      variant="outline"
      confirmVariant="primary"
      title={`Roll back to version ${target.number}?`}
      consequence={
        <>
          {adapter.canary_version && "The canary ends. "}All new requests go to version {target.number}; those in flight end
          on the version they began with.
        </>
      }
      confirmLabel="Roll back"
      onConfirm={serving.rollBack}
    >
      Roll back
    </ConfirmButton>
  );
}
