import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

interface NewKey {
  name: string;
  expires_at: string | null;
  allowed_models: string[] | null;
}

export function useCreateKey(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: NewKey) =>
      unwrap(api.POST("/api/v1/tenants/{tenant_id}/keys", { params: { path: { tenant_id: tenantId } }, body })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["keys", tenantId] }),
    gcTime: 0, // the answer holds the key itself
  });
}
