import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const keysQuery = (tenantId: string, cursor?: string) =>
  queryOptions({
    queryKey: ["keys", tenantId, { cursor }],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/keys", {
          params: { path: { tenant_id: tenantId }, query: { cursor } },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
  });
