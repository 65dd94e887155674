import type { AdapterDetail } from "@/api/types";

/**
 * Whether a version is still in validation. The API shows a version that takes over meanwhile as validating, so the
 * answer that shows it as ready also shows whether it serves.
 */
export function isSettling(adapter: { versions: readonly Pick<AdapterDetail["versions"][number], "status">[] }): boolean {
  return adapter.versions.some(({ status }) => status === "validating");
}
