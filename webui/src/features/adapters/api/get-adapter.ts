import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";
import { isSettling } from "@/features/adapters/settling";

const REFRESH_MS = 1000;

/** The adapter and its versions. Asks again and again while one is on its way into service. */
export const adapterQuery = (tenantId: string, adapterId: string) =>
  queryOptions({
    queryKey: ["adapters", tenantId, "one", adapterId],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/adapters/{adapter_id}", {
          params: { path: { tenant_id: tenantId, adapter_id: adapterId } },
          signal,
        }),
      ),
    refetchInterval: ({ state }) => (state.data && isSettling(state.data) ? REFRESH_MS : false),
  });
