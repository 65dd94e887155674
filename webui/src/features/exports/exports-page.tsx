import { useQuery } from "@tanstack/react-query";

import type { PageSearch } from "@/api/paging";
import type { Export } from "@/api/types";
import { type Column, DataTable } from "@/components/data-table";
import { Digest } from "@/components/digest";
import { Instant } from "@/components/instant";
import { EmptyNote } from "@/components/notes";
import { SectionHeader } from "@/components/page-header";
import { Pager } from "@/components/pager";
import { QueryBoundary } from "@/components/query-boundary";
import { StatusChip, type Tone } from "@/components/status-chip";
import { formatCount } from "@/format/quantities";

import { exportsQuery } from "./api/list-exports";
import { CreateExportButton } from "./create-export-button";
import { Downloads } from "./downloads";

const TONES: Record<Export["status"], Tone> = { pending: "busy", ready: "good", failed: "bad" };

interface ExportsPageProps {
  tenantId: string;
  timeZone: string;
  search: PageSearch;
  onSearch: (search: PageSearch) => void;
}

export function ExportsPage({ tenantId, timeZone, search, onSearch }: ExportsPageProps) {
  const query = useQuery(exportsQuery(tenantId, search.cursor));

  const columns: readonly Column<Export>[] = [
    {
      header: "Period",
      cell: (row) => (
        <span className="whitespace-nowrap tabular-nums">
          {row.first_day} – {row.last_day}
        </span>
      ),
    },
    { header: "Revision", align: "end", fit: true, cell: (row) => row.revision },
    {
      header: "Status",
      cell: (row) => (
        <>
          <StatusChip tone={TONES[row.status]}>{row.status}</StatusChip>
          {row.error !== null && <p className="mt-1 text-danger-soft-foreground">{row.error}</p>}
        </>
      ),
    },
    { header: "Requests", align: "end", cell: (row) => (row.totals ? formatCount(row.totals.requests) : "") },
    {
      header: "Tokens",
      align: "end",
      cell: (row) => (row.totals ? formatCount(row.totals.prompt_tokens + row.totals.completion_tokens) : ""),
    },
    { header: "Amount", align: "end", cell: (row) => <Amounts totals={row.totals} /> },
    { header: "SHA-256", cell: (row) => row.sha256 !== null && <Digest value={row.sha256} /> },
    { header: "Made", fit: true, cell: (row) => <Instant at={row.created_at} /> },
    {
      header: "Files",
      fit: true,
      cell: (row) => row.status === "ready" && <Downloads tenantId={tenantId} made={row} />,
    },
  ];

  return (
    <>
      <SectionHeader
        title="Billing exports"
        description="Exact and final: an export that is made again is the same, byte for byte. Revisions add up."
        actions={<CreateExportButton tenantId={tenantId} timeZone={timeZone} />}
      />
      <QueryBoundary query={query}>
        {({ items, next }) => (
          <>
            <DataTable
              label="Billing exports"
              columns={columns}
              rows={items}
              rowKey={(row) => row.id}
              empty={<EmptyNote title="No exports yet">Make one for a month to bill the tenant from it.</EmptyNote>}
            />
            <Pager cursor={search.cursor} next={next} onTurn={(cursor) => onSearch({ cursor })} />
          </>
        )}
      </QueryBoundary>
    </>
  );
}

function Amounts({ totals }: { totals: Export["totals"] }) {
  if (!totals) return null;
  const amounts = Object.entries(totals.amounts);
  if (amounts.length === 0) return <span className="text-muted">no price</span>;
  return amounts.map(([currency, amount]) => (
    <div key={currency} className="whitespace-nowrap">
      {amount} {currency}
    </div>
  ));
}
