import { Button } from "@heroui/react";
import { useState } from "react";

import type { Tenant } from "@/api/types";
import { ConfirmButton } from "@/components/confirm-button";

import { useChangeTenant } from "./api/change-tenant";
import { TenantFormDialog } from "./tenant-form-dialog";

export function TenantActions({ tenant }: { tenant: Tenant }) {
  const [isEditing, setEditing] = useState(false);
  const change = useChangeTenant(tenant.id);

  return (
    <>
      <Button
        size="sm"
        variant="outline"
        onPress={() => {
          change.reset();
          setEditing(true);
        }}
      >
        Edit
      </Button>
      {tenant.disabled_at === null ? (
        <ConfirmButton
          key="disable"
          variant="danger-soft"
          title={`Disable ${tenant.name}?`}
          consequence="All its keys stop working within seconds. Nothing is deleted, and it can be enabled again."
          confirmLabel="Disable"
          onConfirm={() => change.mutateAsync({ disabled: true })}
        >
          Disable
        </ConfirmButton>
      ) : (
        <ConfirmButton
          key="enable"
          variant="outline"
          confirmVariant="primary"
          title={`Enable ${tenant.name}?`}
          consequence="Its keys work again at once."
          confirmLabel="Enable"
          onConfirm={() => change.mutateAsync({ disabled: false })}
        >
          Enable
        </ConfirmButton>
      )}
      {isEditing && (
        <TenantFormDialog
          title={`Edit ${tenant.name}`}
          submitLabel="Save"
          isNameFixed
          initial={{ name: tenant.name, displayName: tenant.display_name, timezone: tenant.timezone }}
          onClose={() => setEditing(false)}
          isPending={change.isPending}
          error={change.error}
          onSubmit={({ displayName, timezone }) =>
            change.mutate({ display_name: displayName, timezone }, { onSuccess: () => setEditing(false) })
          }
        />
      )}
    </>
  );
}
