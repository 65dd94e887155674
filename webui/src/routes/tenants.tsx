import { createRoute } from "@tanstack/react-router";

import { pageSearch } from "@/api/paging";
import { TenantsPage, type TenantsSearch } from "@/features/tenants/tenants-page";

import { signedInRoute } from "./signed-in";

export const tenantsRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/tenants",
  validateSearch: (search: Record<string, unknown>): TenantsSearch => ({
    ...pageSearch(search),
    ...(typeof search.q === "string" && search.q !== "" && { q: search.q }),
  }),
  component: function Tenants() {
    const navigate = tenantsRoute.useNavigate();
    return (
      <TenantsPage
        search={tenantsRoute.useSearch()}
        onSearch={(search) => void navigate({ search, replace: true })}
        onCreated={({ id }) => void navigate({ to: "/tenants/$tenantId", params: { tenantId: id } })}
      />
    );
  },
});
