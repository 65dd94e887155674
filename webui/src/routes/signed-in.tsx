import { createRoute, Outlet, redirect } from "@tanstack/react-router";

import { isSignedOut } from "@/api/errors";
import type { User } from "@/api/types";
import { AuditIcon, EngineIcon, TenantsIcon } from "@/components/icons";
import { type NavItem, Shell } from "@/components/shell";
import { Account } from "@/features/session/account";
import { sessionQuery } from "@/features/session/api/get-session";

import { rootRoute } from "./root";

/** Everything but the sign-in page lies below this: without a session it leads there, and back. */
export const signedInRoute = createRoute({
  getParentRoute: () => rootRoute,
  id: "signed-in",
  beforeLoad: async ({ context, location }) => {
    try {
      const { user } = await context.queryClient.query({ ...sessionQuery, staleTime: "static" });
      return { user };
    } catch (error) {
      if (isSignedOut(error)) throw redirect({ to: "/sign-in", search: { back: location.href } });
      throw error;
    }
  },
  component: function SignedIn() {
    const { user } = signedInRoute.useRouteContext();
    const navigate = signedInRoute.useNavigate();
    return (
      <Shell
        nav={navFor(user)}
        account={<Account user={user} onSignedOut={() => void navigate({ to: "/sign-in" })} />}
      >
        <Outlet />
      </Shell>
    );
  },
});

function navFor(user: User): NavItem[] {
  if (user.tenant_id !== null) {
    const params = { tenantId: user.tenant_id };
    return [{ label: "Your tenant", icon: <TenantsIcon />, link: { to: "/tenants/$tenantId", params } }];
  }
  const tenants: NavItem = { label: "Tenants", icon: <TenantsIcon />, link: { to: "/tenants" } };
  if (user.role !== "platform_admin") return [tenants];
  return [
    tenants,
    { label: "Engines", icon: <EngineIcon />, link: { to: "/engines" } },
    { label: "Audit", icon: <AuditIcon />, link: { to: "/audit" } },
  ];
}
