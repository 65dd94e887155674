import { parseDate } from "@internationalized/date";
import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";
import type { UsageRange } from "@/features/usage/usage-search";

/** Usage of the days `from` to `to`, both included; the API's own `to` is the first day after. */
export const usageQuery = (tenantId: string, { from, to, bucket }: UsageRange) =>
  queryOptions({
    queryKey: ["usage", tenantId, { from, to, bucket }],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/api/v1/tenants/{tenant_id}/usage", {
          params: {
            path: { tenant_id: tenantId },
            query: { from, to: parseDate(to).add({ days: 1 }).toString(), bucket },
          },
          signal,
        }),
      ),
  });
