import { Button } from "@heroui/react";
import { useState } from "react";

import type { Tenant } from "@/api/types";
import { PlusIcon } from "@/components/icons";

import { useCreateTenant } from "./api/create-tenant";
import { TenantFormDialog } from "./tenant-form-dialog";

export function CreateTenantButton({ onCreated }: { onCreated: (tenant: Tenant) => void }) {
  const [isOpen, setOpen] = useState(false);
  const create = useCreateTenant();

  return (
    <>
      <Button
        size="sm"
        onPress={() => {
          create.reset();
          setOpen(true);
        }}
      >
        <PlusIcon /> New tenant
      </Button>
      {isOpen && (
        <TenantFormDialog
          title="New tenant"
          submitLabel="Create tenant"
          initial={{ name: "", displayName: "", timezone: "UTC" }}
          onClose={() => setOpen(false)}
          isPending={create.isPending}
          error={create.error}
          onSubmit={({ name, displayName, timezone }) =>
            create.mutate({ name, display_name: displayName.trim() || null, timezone }, { onSuccess: onCreated })
          }
        />
      )}
    </>
  );
}
