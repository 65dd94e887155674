import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

/** The gateways write what they hear every second; an engine that is silent for five is gone. */
const REFRESH_MS = 2000;

export const enginesQuery = queryOptions({
  queryKey: ["engines"],
  queryFn: ({ signal }) => unwrap(api.GET("/api/v1/engines", { signal })),
  refetchInterval: REFRESH_MS,
});
