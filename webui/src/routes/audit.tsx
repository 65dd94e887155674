import { createRoute } from "@tanstack/react-router";

import { pageSearch } from "@/api/paging";
import { AuditPage } from "@/features/audit/audit-page";

import { signedInRoute } from "./signed-in";

export const auditRoute = createRoute({
  getParentRoute: () => signedInRoute,
  path: "/audit",
  validateSearch: pageSearch,
  component: function Audit() {
    const navigate = auditRoute.useNavigate();
    return <AuditPage search={auditRoute.useSearch()} onSearch={(search) => void navigate({ search })} />;
  },
});
