import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const auditQuery = (cursor?: string) =>
  queryOptions({
    queryKey: ["audit", { cursor }],
    queryFn: ({ signal }) => unwrap(api.GET("/api/v1/audit", { params: { query: { cursor } }, signal })),
    placeholderData: keepPreviousData,
  });
