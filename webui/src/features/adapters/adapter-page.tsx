import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";

import { ConfirmButton } from "@/components/confirm-button";
import { CopyButton } from "@/components/copy-button";
import { SectionHeader } from "@/components/page-header";
import { QueryBoundary } from "@/components/query-boundary";

import { adapterQuery } from "./api/get-adapter";
import { useDeleteAdapter } from "./api/delete-adapter";
import { RollBackButton } from "./roll-back-button";
import { UploadButton } from "./upload-button";
import { VersionCard } from "./version-card";

interface AdapterPageProps {
  tenantId: string;
  adapterId: string;
  onDeleted: () => void;
}

export function AdapterPage({ tenantId, adapterId, onDeleted }: AdapterPageProps) {
  const query = useQuery(adapterQuery(tenantId, adapterId));
  const remove = useDeleteAdapter(tenantId);

  return (
    <>
      <Link to="/tenants/$tenantId/adapters" params={{ tenantId }} className="mb-3 inline-block text-muted hover:text-foreground">
        ← All adapters
      </Link>
      <QueryBoundary query={query}>
        {(adapter) => (
          <>
            <SectionHeader
              title={adapter.name}
              description={
                <span className="flex flex-wrap items-center gap-2">
                  Requests name it <code className="font-mono text-xs text-foreground">{adapter.model}</code>
                  <CopyButton text={adapter.model} what="model name" />
                </span>
              }
              actions={
                <>
                  <RollBackButton tenantId={tenantId} adapter={adapter} />
                  <UploadButton tenantId={tenantId} label="New version" name={adapter.name} variant="outline" onUploaded={() => void query.refetch()} />
                  <ConfirmButton
                    variant="danger-soft"
                    title={`Delete ${adapter.name}?`}
                    consequence={
                      <>
                        New requests to <code className="font-mono text-xs">{adapter.model}</code> are refused within
                        seconds; those in flight end normally. Its usage stays on the books, and the name is free again.
                      </>
                    }
                    confirmLabel="Delete adapter"
                    onConfirm={async () => {
                      await remove.mutateAsync(adapter.id);
                      onDeleted();
                    }}
                  >
                    Delete
                  </ConfirmButton>
                </>
              }
            />
            <ol aria-label="Versions, newest first" className="flex flex-col gap-3">
              {adapter.versions.map((version) => (
                <VersionCard key={version.id} tenantId={tenantId} adapter={adapter} version={version} />
              ))}
            </ol>
          </>
        )}
      </QueryBoundary>
    </>
  );
}
