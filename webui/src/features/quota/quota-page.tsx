import { useQuery } from "@tanstack/react-query";

import { Panel } from "@/components/data-table";
import { SectionHeader } from "@/components/page-header";
import { QueryBoundary } from "@/components/query-boundary";

import { quotaQuery } from "./api/get-quota";
import { QuotaForm } from "./quota-form";

export function QuotaPage({ tenantId, canEdit }: { tenantId: string; canEdit: boolean }) {
  const query = useQuery(quotaQuery(tenantId));
  return (
    <div className="max-w-xl">
      <SectionHeader
        title="Quota"
        description="Limits on the tenant's requests, over all its keys and models. A change is in force within a second."
      />
      <QueryBoundary query={query}>
        {(quota) => (
          <Panel className="p-4">
            <QuotaForm
              key={`${quota.requests_per_minute ?? "none"}/${quota.tokens_per_minute ?? "none"}`}
              tenantId={tenantId}
              quota={quota}
              canEdit={canEdit}
            />
          </Panel>
        )}
      </QueryBoundary>
    </div>
  );
}
