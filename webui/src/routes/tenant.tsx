/** A tenant and its tabs, each put together from a feature. */
import { useQuery } from "@tanstack/react-query";
import { createRoute, lazyRouteComponent, Outlet, redirect } from "@tanstack/react-router";

import { pageSearch } from "@/api/paging";
import { AdapterPage } from "@/features/adapters/adapter-page";
import { AdaptersPage } from "@/features/adapters/adapters-page";
import { ExportsPage } from "@/features/exports/exports-page";
import { KeysPage } from "@/features/keys/keys-page";
import { QuotaPage } from "@/features/quota/quota-page";
import { tenantQuery } from "@/features/tenants/api/get-tenant";
import { TenantLayout } from "@/features/tenants/tenant-layout";
import { parseUsageSearch } from "@/features/usage/usage-search";

import { signedInRoute } from "./signed-in";

export const tenantRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/tenants/$tenantId",
  component: function Tenant() {
    const { tenantId } = tenantRoute.useParams();
    const { user } = tenantRoute.useRouteContext();
    return (
      <TenantLayout key={tenantId} tenantId={tenantId} canGovern={user.role === "platform_admin"}>
        <Outlet />
      </TenantLayout>
    );
  },
});

/** The tenant's own zone; the layout above shows a tab only once the tenant is known. */
export function useTimeZone(tenantId: string): string {
  return useQuery(tenantQuery(tenantId)).data?.timezone ?? "UTC";
}

const tenantIndexRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "/",
  beforeLoad: ({ params }) => {
    throw redirect({ to: "/tenants/$tenantId/adapters", params, replace: true });
  },
});

const adaptersRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters",
  validateSearch: pageSearch,
  component: function Adapters() {
    const { tenantId } = adaptersRoute.useParams();
    const navigate = adaptersRoute.useNavigate();
    return (
      <AdaptersPage
        tenantId={tenantId}
        search={adaptersRoute.useSearch()}
        onSearch={(search) => void navigate({ search })}
        onUploaded={(adapterId) =>
          void navigate({ to: "/tenants/$tenantId/adapters/$adapterId", params: { tenantId, adapterId } })
        }
      />
    );
  },
});

const adapterRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "adapters/$adapterId",
  component: function Adapter() {
    const { tenantId, adapterId } = adapterRoute.useParams();
    const navigate = adapterRoute.useNavigate();
    return (
      <AdapterPage
        tenantId={tenantId}
        adapterId={adapterId}
        onDeleted={() => void navigate({ to: "/tenants/$tenantId/adapters", params: { tenantId } })}
      />
    );
  },
});

const keysRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "keys",
  validateSearch: pageSearch,
  component: function Keys() {
    const { tenantId } = keysRoute.useParams();
    const navigate = keysRoute.useNavigate();
    return (
      <KeysPage tenantId={tenantId} search={keysRoute.useSearch()} onSearch={(search) => void navigate({ search })} />
    );
  },
});

const quotaRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "quota",
  component: function Quota() {
    const { tenantId } = quotaRoute.useParams();
    const { user } = quotaRoute.useRouteContext();
    return <QuotaPage tenantId={tenantId} canEdit={user.role === "platform_admin"} />;
  },
});

export const usageRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "usage",
  validateSearch: parseUsageSearch,
  // The charts are most of the UI's weight: they load when they are first looked at.
  component: lazyRouteComponent(() => import("./tenant-usage"), "TenantUsage"),
});

const exportsRoute = createRoute({
  getParentRoute: () => tenantRoute,
  path: "exports",
  validateSearch: pageSearch,
  component: function Exports() {
    const { tenantId } = exportsRoute.useParams();
    const navigate = exportsRoute.useNavigate();
    return (
      <ExportsPage
        tenantId={tenantId}
        timeZone={useTimeZone(tenantId)}
        search={exportsRoute.useSearch()}
        onSearch={(search) => void navigate({ search })}
      />
    );
  },
});

export const tenantTree = tenantRoute.addChildren([
  tenantIndexRoute,
  adaptersRoute,
  adapterRoute,
  keysRoute,
  quotaRoute,
  usageRoute,
  exportsRoute,
]);
