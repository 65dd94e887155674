import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const quotaQuery = (tenantId: string) =>
  queryOptions({
    queryKey: ["quota", tenantId],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/api/v1/tenants/{tenant_id}/quota", { params: { path: { tenant_id: tenantId } }, signal })),
  });
