import { createRoute, redirect } from "@tanstack/react-router";

import { signedInRoute } from "./signed-in";

/** The first page: a tenant's own people have only the one. */
export const indexRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/",
  beforeLoad: ({ context: { user } }) => {
    if (user.tenant_id !== null) throw redirect({ to: "/tenants/$tenantId", params: { tenantId: user.tenant_id } });
    throw redirect({ to: "/tenants" });
  },
});
