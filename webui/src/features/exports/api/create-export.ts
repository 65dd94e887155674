import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export function useCreateExport(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    /** `period` is a month, such as 2026-11. */
    mutationFn: (period: string) =>
      unwrap(
        api.POST("/api/v1/tenants/{tenant_id}/exports", {
          params: { path: { tenant_id: tenantId } },
          body: { period },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["exports", tenantId] }),
  });
}
