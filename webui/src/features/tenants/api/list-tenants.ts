import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const tenantsQuery = (cursor?: string) =>
  queryOptions({
    queryKey: ["tenants", "list", { cursor }],
    queryFn: ({ signal }) => unwrap(api.GET("/api/v1/tenants", { params: { query: { cursor } }, signal })),
    placeholderData: keepPreviousData,
  });
