import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

const REFRESH_MS = 1500;

/** Asks again and again while an export is being made. */
export const exportsQuery = (tenantId: string, cursor?: string) =>
  queryOptions({
    queryKey: ["exports", tenantId, { cursor }],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/exports", {
          params: { path: { tenant_id: tenantId }, query: { cursor } },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (state.data?.items.some(({ status }) => status === "pending") ? REFRESH_MS : false),
  });
