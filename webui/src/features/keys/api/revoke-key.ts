import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export function useRevokeKey(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (keyId: string) =>
      unwrap(
        api.DELETE("/api/v1/tenants/{tenant_id}/keys/{key_id}", {
          params: { path: { tenant_id: tenantId, key_id: keyId } },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["keys", tenantId] }),
  });
}
