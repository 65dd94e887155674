import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

const REFRESH_MS = 1500;

/** Asks again and again while an upload is being validated. */
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
    refetchInterval: ({ state }) =>
      state.data?.items.some(({ latest_version: latest }) => latest?.status === "validating") ? REFRESH_MS : false,
  });
