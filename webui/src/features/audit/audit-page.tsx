import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";

import type { PageSearch } from "@/api/paging";
import type { AuditEntry } from "@/api/types";
import { type Column, DataTable } from "@/components/data-table";
import { Instant } from "@/components/instant";
import { EmptyNote } from "@/components/notes";
import { PageHeader } from "@/components/page-header";
import { Pager } from "@/components/pager";
import { QueryBoundary } from "@/components/query-boundary";

import { auditQuery } from "./api/list-audit";

const columns: readonly Column<AuditEntry>[] = [
  { header: "When", cell: (entry) => <Instant at={entry.at} />, fit: true },
  { header: "Who", cell: (entry) => entry.actor },
  { header: "What", cell: (entry) => <code className="font-mono text-xs">{entry.action}</code> },
  {
    header: "Tenant",
    cell: (entry) =>
      entry.tenant_id !== null && (
        <Link to="/tenants/$tenantId" params={{ tenantId: entry.tenant_id }} className="hover:underline">
          <code title={entry.tenant_id} className="font-mono text-xs">
            {entry.tenant_id.slice(0, 8)}
          </code>
        </Link>
      ),
  },
  { header: "Detail", cell: (entry) => <Detail detail={entry.detail} /> },
];

function Detail({ detail }: { detail: AuditEntry["detail"] }) {
  return (
    <span className="font-mono text-xs break-all">
      {Object.entries(detail)
        .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
        .join(" · ")}
    </span>
  );
}

export function AuditPage({ search, onSearch }: { search: PageSearch; onSearch: (search: PageSearch) => void }) {
  const query = useQuery(auditQuery(search.cursor));
  return (
    <>
      <PageHeader title="Audit" description="Who changed what. Entries are never altered." />
      <QueryBoundary query={query}>
        {({ items, next }) => (
          <>
            <DataTable
              label="Audit entries"
              columns={columns}
              rows={items}
              rowKey={(entry) => entry.id}
              empty={<EmptyNote title="Nothing has been changed yet" />}
            />
            <Pager cursor={search.cursor} next={next} onTurn={(cursor) => onSearch({ cursor })} />
          </>
        )}
      </QueryBoundary>
    </>
  );
}
