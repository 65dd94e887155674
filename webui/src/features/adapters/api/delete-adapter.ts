import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export function useDeleteAdapter(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (adapterId: string) =>
      unwrap(
        api.DELETE("/api/v1/tenants/{tenant_id}/adapters/{adapter_id}", {
          params: { path: { tenant_id: tenantId, adapter_id: adapterId } },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["adapters", tenantId, "list"] }),
  });
}
