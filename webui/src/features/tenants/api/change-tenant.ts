import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

interface TenantChange {
  display_name?: string;
  timezone?: string;
  disabled?: boolean;
}

export function useChangeTenant(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: TenantChange) =>
      unwrap(api.PATCH("/api/v1/tenants/{tenant_id}", { params: { path: { tenant_id: tenantId } }, body })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["tenants"] }),
  });
}
