import type { AdapterDetail, AdapterVersion } from "@/api/types";
import { Panel } from "@/components/data-table";
import { Digest } from "@/components/digest";
import { Instant } from "@/components/instant";
import { formatBytes } from "@/format/quantities";

import { ReportModules } from "./report-modules";
import { ReportFindings } from "./report-findings";
import { VersionButtons } from "./version-buttons";
import { VersionStatusChip } from "./version-status-chip";

interface VersionCardProps {
  tenantId: string;
  adapter: AdapterDetail;
  version: AdapterVersion;
}

export function VersionCard({ tenantId, adapter, version }: VersionCardProps) {
  const { share_percent: share } = version;
  return (
    <li>
      <Panel className="px-4 py-3">
        <div className="flex flex-wrap items-center gap-x-4 gap-y-1">
          <h3 className="font-semibold">Version {version.number}</h3>
          <VersionStatusChip status={version.status} />
          {share > 0 && (
            <span className="text-xs font-medium text-accent-soft-foreground">
              serves {share < 100 && `${share} in 100 `}requests
            </span>
          )}
          <span className="ms-auto flex flex-wrap gap-x-4 text-xs text-muted">
            <span>{formatBytes(version.size_bytes)}</span>
            <Digest value={version.digest} />
            <Instant at={version.created_at} />
          </span>
        </div>
        <div className="mt-3 flex flex-col gap-3 empty:hidden">
          <ReportFindings report={version.report} />
          <ReportModules modules={version.report.modules ?? []} />
          <VersionButtons tenantId={tenantId} adapter={adapter} version={version} />
        </div>
      </Panel>
    </li>
  );
}
