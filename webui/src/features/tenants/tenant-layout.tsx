import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { PageHeader } from "@/components/page-header";
import { QueryBoundary } from "@/components/query-boundary";
import { StatusChip } from "@/components/status-chip";
import { TabLinks } from "@/components/tab-links";

import { tenantQuery } from "./api/get-tenant";
import { TenantActions } from "./tenant-actions";

interface TenantLayoutProps {
  tenantId: string;
  /** Changing the tenant itself is the platform's business. */
  canGovern: boolean;
  children: ReactNode;
}

/** What all of a tenant's tabs have above them. */
export function TenantLayout({ tenantId, canGovern, children }: TenantLayoutProps) {
  const query = useQuery(tenantQuery(tenantId));
  const params = { tenantId };
  return (
    <QueryBoundary query={query}>
      {(tenant) => (
        <>
          <PageHeader
            title={
              <span className="flex items-center gap-2.5">
                {tenant.display_name}
                {tenant.disabled_at !== null && <StatusChip tone="bad">disabled</StatusChip>}
              </span>
            }
            description={`${tenant.name} · ${tenant.timezone}`}
            actions={canGovern && <TenantActions tenant={tenant} />}
          />
          <TabLinks
            label={`Parts of ${tenant.display_name}`}
            tabs={[
              { label: "Adapters", link: { to: "/tenants/$tenantId/adapters", params } },
              { label: "Keys", link: { to: "/tenants/$tenantId/keys", params } },
              { label: "Quota", link: { to: "/tenants/$tenantId/quota", params } },
              { label: "Usage", link: { to: "/tenants/$tenantId/usage", params } },
              { label: "Exports", link: { to: "/tenants/$tenantId/exports", params } },
            ]}
          />
          {children}
        </>
      )}
    </QueryBoundary>
  );
}
