import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

/** What a tenant may store, and what it does. */
export const adapterQuotaQuery = (tenantId: string) =>
  queryOptions({
    queryKey: ["adapters", tenantId, "quota"],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/adapter-quota", { params: { path: { tenant_id: tenantId } }, signal }),
      ),
  });
