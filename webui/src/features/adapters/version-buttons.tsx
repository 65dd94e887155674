import { Button } from "@heroui/react";
import { useState } from "react";

import type { AdapterDetail, AdapterVersion } from "@/api/types";
import { ConfirmButton } from "@/components/confirm-button";

import { useServing } from "./api/change-serving";
import { CanaryDialog } from "./canary-dialog";
import { actionsOf } from "./version-actions";

interface VersionButtonsProps {
  tenantId: string;
  adapter: AdapterDetail;
  version: AdapterVersion;
}

export function VersionButtons({ tenantId, adapter, version }: VersionButtonsProps) {
  const serving = useServing(tenantId, adapter.id);
  const [isSharing, setSharing] = useState(false);
  const actions = actionsOf(version, adapter);
  const { number, share_percent: share } = version;
  const model = <code className="font-mono text-xs">{adapter.model}</code>;
  return (
    <div className="flex flex-wrap gap-1" role="group" aria-label={`What to do with version ${number}`}>
      {actions.includes("promote") && (
        <ConfirmButton
          variant="outline"
          confirmVariant="primary"
          title={`Serve version ${number}?`}
          consequence={<>All new requests to {model} go to it; those in flight end on the version they began with.</>}
          confirmLabel="Promote"
          onConfirm={() => serving.promote(number)}
        >
          Promote
        </ConfirmButton>
      )}
      {actions.includes("canary") && (
        <Button size="sm" variant="outline" onPress={() => setSharing(true)}>
          {share ? "Change share" : "Canary"}
        </Button>
      )}
      {share > 0 && adapter.canary_version?.id === version.id && (
        <ConfirmButton
          title={`End the canary of version ${number}?`}
          consequence={<>All new requests to {model} go to version {adapter.active_version?.number} again.</>}
          confirmLabel="End canary"
          onConfirm={serving.endCanary}
        >
          End canary
        </ConfirmButton>
      )}
      {actions.includes("retire") && (
        <ConfirmButton
          title={`Retire version ${number}?`}
          consequence="It takes no new requests any more, by its number either. Its files stay; it cannot serve again."
          confirmLabel="Retire version"
          onConfirm={() => serving.retire(version.id)}
        >
          Retire
        </ConfirmButton>
      )}
      {actions.includes("delete") && (
        <ConfirmButton
          title={`Delete version ${number}?`}
          consequence="It takes no new requests and is listed no more. Its usage stays on the books. This cannot be undone."
          confirmLabel="Delete version"
          onConfirm={() => serving.remove(version.id)}
        >
          Delete version
        </ConfirmButton>
      )}
      {isSharing && (
        <CanaryDialog
          number={number}
          share={share}
          onSet={(percent) => serving.setCanary(number, percent)}
          onClose={() => setSharing(false)}
        />
      )}
    </div>
  );
}
