import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";

import type { PageSearch } from "@/api/paging";
import type { Adapter } from "@/api/types";
import { type Column, DataTable } from "@/components/data-table";
import { Instant } from "@/components/instant";
import { EmptyNote } from "@/components/notes";
import { SectionHeader } from "@/components/page-header";
import { Pager } from "@/components/pager";
import { QueryBoundary } from "@/components/query-boundary";

import { adapterQuotaQuery } from "./api/get-adapter-quota";
import { adaptersQuery } from "./api/list-adapters";
import { storedLine } from "./stored";
import { UploadButton } from "./upload-button";
import { VersionStatusChip } from "./version-status-chip";

interface AdaptersPageProps {
  tenantId: string;
  search: PageSearch;
  onSearch: (search: PageSearch) => void;
  onUploaded: (adapterId: string) => void;
}

export function AdaptersPage({ tenantId, search, onSearch, onUploaded }: AdaptersPageProps) {
  const query = useQuery(adaptersQuery(tenantId, search.cursor));
  const { data: quota } = useQuery(adapterQuotaQuery(tenantId));

  const columns: readonly Column<Adapter>[] = [
    {
      header: "Name",
      cell: (adapter) => (
        <Link
          to="/tenants/$tenantId/adapters/$adapterId"
          params={{ tenantId, adapterId: adapter.id }}
          className="font-medium hover:underline"
        >
          {adapter.name}
        </Link>
      ),
    },
    { header: "Model name in requests", cell: (adapter) => <code className="font-mono text-xs">{adapter.model}</code> },
    { header: "Base model", cell: (adapter) => adapter.base_model },
    { header: "Active version", align: "end", cell: (adapter) => adapter.active_version?.number ?? "none" },
    {
      header: "Newest upload",
      cell: ({ latest_version: latest }) =>
        latest && <VersionStatusChip status={latest.status} />,
    },
    { header: "Versions", align: "end", cell: (adapter) => adapter.versions_count },
    { header: "Created", fit: true, cell: (adapter) => <Instant at={adapter.created_at} /> },
  ];

  return (
    <>
      <SectionHeader
        title="Adapters"
        description={
          <>
            Each is served under its own model name, on the shared base model.
            {quota && <span className="block">{storedLine(quota)}</span>}
          </>
        }
        actions={<UploadButton tenantId={tenantId} label="Upload adapter" onUploaded={onUploaded} />}
      />
      <QueryBoundary query={query}>
        {({ items, next }) => (
          <>
            <DataTable
              label="Adapters"
              columns={columns}
              rows={items}
              rowKey={(adapter) => adapter.id}
              empty={
                <EmptyNote title="No adapters yet">
                  Upload a PEFT LoRA adapter. Until then the tenant can use the base model.
                </EmptyNote>
              }
            />
            <Pager cursor={search.cursor} next={next} onTurn={(cursor) => onSearch({ cursor })} />
          </>
        )}
      </QueryBoundary>
    </>
  );
}
