import type { Export } from "@/api/types";
import { DownloadIcon } from "@/components/icons";

/** Plain links: the browser sends the session's cookie, and streams the file to the disk. */
export function Downloads({ tenantId, made }: { tenantId: string; made: Export }) {
  const folder = `/api/v1/tenants/${tenantId}/exports/${made.id}`;
  const name = `${made.first_day}_${made.last_day}_r${made.revision}`;
  const style = "inline-flex items-center gap-1 text-accent-soft-foreground hover:underline";
  return (
    <span className="flex gap-3">
      <a href={`${folder}/file`} download={`${name}.csv`} className={style}>
        <DownloadIcon className="size-3.5" /> CSV
      </a>
      <a href={`${folder}/manifest`} download={`${name}.manifest.json`} className={style}>
        <DownloadIcon className="size-3.5" /> Manifest
      </a>
    </span>
  );
}
