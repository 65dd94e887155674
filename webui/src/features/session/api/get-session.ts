import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

/** Who is signed in. Fails with a 401 ApiError when nobody is. */
export const sessionQuery = queryOptions({
  queryKey: ["session"],
  queryFn: ({ signal }) => unwrap(api.GET("/api/v1/session", { signal })),
  staleTime: Infinity,
  retry: false,
});
