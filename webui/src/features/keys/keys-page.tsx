import { useQuery } from "@tanstack/react-query";

import type { PageSearch } from "@/api/paging";
import type { ApiKey } from "@/api/types";
import { ConfirmButton } from "@/components/confirm-button";
import { type Column, DataTable } from "@/components/data-table";
import { Instant } from "@/components/instant";
import { EmptyNote } from "@/components/notes";
import { SectionHeader } from "@/components/page-header";
import { Pager } from "@/components/pager";
import { QueryBoundary } from "@/components/query-boundary";
import { StatusChip, type Tone } from "@/components/status-chip";

import { keysQuery } from "./api/list-keys";
import { useRevokeKey } from "./api/revoke-key";
import { CreateKeyButton } from "./create-key-button";
import { keyState, type KeyState } from "./key-state";

const TONES: Record<KeyState, Tone> = { active: "good", expired: "caution", revoked: "quiet" };

interface KeysPageProps {
  tenantId: string;
  search: PageSearch;
  onSearch: (search: PageSearch) => void;
}

export function KeysPage({ tenantId, search, onSearch }: KeysPageProps) {
  const query = useQuery(keysQuery(tenantId, search.cursor));
  const revoke = useRevokeKey(tenantId);
  const now = query.dataUpdatedAt;

  const columns: readonly Column<ApiKey>[] = [
    { header: "Name", cell: (key) => key.name },
    { header: "Key", cell: (key) => <code className="font-mono text-xs">tnr_{key.prefix}_…</code> },
    {
      header: "Status",
      cell: (key) => <StatusChip tone={TONES[keyState(key, now)]}>{keyState(key, now)}</StatusChip>,
    },
    { header: "Models", cell: (key) => key.allowed_models?.join(", ") ?? "all" },
    { header: "Expires", cell: (key) => (key.expires_at ? <Instant at={key.expires_at} /> : "never") },
    { header: "Last used", cell: (key) => (key.last_used_at ? <Instant at={key.last_used_at} /> : "never") },
    { header: "Created", cell: (key) => <Instant at={key.created_at} />, fit: true },
    {
      header: "Actions",
      align: "end",
      fit: true,
      cell: (key) =>
        key.revoked_at === null && (
          <ConfirmButton
            className="-my-1 h-7"
            title={`Revoke “${key.name}”?`}
            consequence="Whatever uses this key is refused within seconds. This cannot be undone."
            confirmLabel="Revoke key"
            onConfirm={() => revoke.mutateAsync(key.id)}
          >
            Revoke
          </ConfirmButton>
        ),
    },
  ];

  return (
    <>
      <SectionHeader
        title="API keys"
        description="A tenant's programs authenticate with these. Only a digest is stored."
        actions={<CreateKeyButton tenantId={tenantId} />}
      />
      <QueryBoundary query={query}>
        {({ items, next }) => (
          <>
            <DataTable
              label="API keys"
              columns={columns}
              rows={items}
              rowKey={(key) => key.id}
              isMuted={(key) => keyState(key, now) !== "active"}
              empty={<EmptyNote title="No keys yet">Without one, the tenant cannot make requests.</EmptyNote>}
            />
            <Pager cursor={search.cursor} next={next} onTurn={(cursor) => onSearch({ cursor })} />
          </>
        )}
      </QueryBoundary>
    </>
  );
}
