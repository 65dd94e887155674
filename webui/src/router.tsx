import type { QueryClient } from "@tanstack/react-query";
import { createRouter, Link } from "@tanstack/react-router";

import { EmptyNote, ErrorNote } from "@/components/notes";
import { LoadingLines } from "@/components/query-boundary";

import { auditRoute } from "./routes/audit";
import { enginesRoute } from "./routes/engines";
import { indexRoute } from "./routes/index";
import { rootRoute } from "./routes/root";
import { signInRoute } from "./routes/sign-in";
import { signedInRoute } from "./routes/signed-in";
import { tenantTree } from "./routes/tenant";
import { tenantsRoute } from "./routes/tenants";

const routeTree = rootRoute.addChildren([
  signInRoute,
  signedInRoute.addChildren([indexRoute, tenantsRoute, tenantTree, enginesRoute, auditRoute]),
]);

export function makeRouter(queryClient: QueryClient) {
  return createRouter({
    routeTree,
    context: { queryClient },
    scrollRestoration: true,
    defaultPendingComponent: () => (
      <div className="p-8">
        <LoadingLines />
      </div>
    ),
    defaultErrorComponent: ({ error, reset }) => (
      <div className="mx-auto max-w-xl p-8">
        <ErrorNote error={error instanceof Error ? error : new Error("This page failed.")} onRetry={reset} />
      </div>
    ),
    defaultNotFoundComponent: () => (
      <EmptyNote title="There is no such page">
        <Link to="/" className="underline">
          To the first page
        </Link>
      </EmptyNote>
    ),
  });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
