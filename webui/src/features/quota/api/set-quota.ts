import { useMutation, useQueryClient } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

import type { Limits } from "@/features/quota/limits";

import { quotaQuery } from "./get-quota";

export function useSetQuota(tenantId: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: Limits) =>
      unwrap(api.PUT("/api/v1/tenants/{tenant_id}/quota", { params: { path: { tenant_id: tenantId } }, body })),
    onSuccess: (quota) => client.setQueryData(quotaQuery(tenantId).queryKey, quota),
  });
}
