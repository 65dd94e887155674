import { queryOptions } from "@tanstack/react-query";

import { api, unwrap } from "@/api/client";

export const tenantQuery = (tenantId: string) =>
  queryOptions({
    queryKey: ["tenants", "one", tenantId],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/api/v1/tenants/{tenant_id}", { params: { path: { tenant_id: tenantId } }, signal })),
  });
