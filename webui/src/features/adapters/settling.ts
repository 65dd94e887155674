import type { AdapterDetail } from "@/api/types";

type Standing = Pick<AdapterDetail["versions"][number], "number" | "status">;

/**
 * Whether a version is on its way into service: in validation, or ready and newer than the one that serves. The second
 * is seen for a moment only, when the answer was put together while the version took over.
 */
export function isSettling(adapter: { active_version: Standing | null; versions: readonly Standing[] }): boolean {
  const serving = adapter.active_version?.number ?? 0;
  return adapter.versions.some(({ status, number }) => status === "validating" || (status === "ready" && number > serving));
}
