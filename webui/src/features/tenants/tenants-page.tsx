import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";

import type { Tenant } from "@/api/types";
import { type Column, DataTable } from "@/components/data-table";
import { TextInput } from "@/components/fields";
import { Instant } from "@/components/instant";
import { EmptyNote } from "@/components/notes";
import { PageHeader } from "@/components/page-header";
import { Pager } from "@/components/pager";
import { QueryBoundary } from "@/components/query-boundary";
import { StatusChip } from "@/components/status-chip";

import { tenantsQuery } from "./api/list-tenants";
import { CreateTenantButton } from "./create-tenant-button";

export interface TenantsSearch {
  cursor?: string;
  /** Part of a name to look for, on the page shown. */
  q?: string;
}

interface TenantsPageProps {
  search: TenantsSearch;
  onSearch: (search: TenantsSearch) => void;
  onCreated: (tenant: Tenant) => void;
}

const columns: readonly Column<Tenant>[] = [
  {
    header: "Name",
    cell: (tenant) => (
      <Link to="/tenants/$tenantId" params={{ tenantId: tenant.id }} className="font-medium hover:underline">
        {tenant.name}
      </Link>
    ),
  },
  { header: "Display name", cell: (tenant) => tenant.display_name },
  { header: "Time zone", cell: (tenant) => tenant.timezone },
  {
    header: "Status",
    cell: (tenant) =>
      tenant.disabled_at === null ? <StatusChip tone="good">active</StatusChip> : <StatusChip tone="quiet">disabled</StatusChip>,
  },
  { header: "Created", cell: (tenant) => <Instant at={tenant.created_at} />, fit: true },
];

export function TenantsPage({ search, onSearch, onCreated }: TenantsPageProps) {
  const query = useQuery(tenantsQuery(search.cursor));
  const wanted = (search.q ?? "").toLowerCase();
  const matches = (tenant: Tenant) =>
    tenant.name.includes(wanted) || tenant.display_name.toLowerCase().includes(wanted);

  return (
    <>
      <PageHeader
        title="Tenants"
        description="Each has its own adapters, keys, quota and usage."
        actions={<CreateTenantButton onCreated={onCreated} />}
      />
      <QueryBoundary query={query}>
        {({ items, next }) => (
          <>
            {(items.length > 5 || wanted !== "") && (
              <TextInput
                label="Find on this page"
                isLabelHidden
                placeholder="Find on this page"
                name="q"
                type="search"
                className="mb-3 max-w-64"
                value={search.q ?? ""}
                onChange={(q) => onSearch({ ...search, q: q || undefined })}
              />
            )}
            <DataTable
              label="Tenants"
              columns={columns}
              rows={items.filter(matches)}
              rowKey={(tenant) => tenant.id}
              isMuted={(tenant) => tenant.disabled_at !== null}
              empty={
                wanted === "" ? (
                  <EmptyNote title="No tenants yet">Create the first one; then give it a key and an adapter.</EmptyNote>
                ) : (
                  <EmptyNote title={`Nothing on this page matches “${search.q ?? ""}”`} />
                )
              }
            />
            <Pager cursor={search.cursor} next={next} onTurn={(cursor) => onSearch({ ...search, cursor })} />
          </>
        )}
      </QueryBoundary>
    </>
  );
}
