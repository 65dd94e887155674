import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const adaptersQuery = (tenantId: string, cursor?: string) =>
  queryOptions({
    queryKey: ["adapters", tenantId, "list", { cursor }],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/adapters", {
          params: { path: { tenant_id: tenantId }, query: { cursor } },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
  });
