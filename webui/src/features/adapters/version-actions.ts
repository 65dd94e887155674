import type { AdapterDetail, AdapterVersion } from "@/api/types";

export type VersionAction = "promote" | "canary" | "retire" | "delete";

/** What can be done with a version now: the API refuses the rest. */
export function actionsOf(
  version: Pick<AdapterVersion, "id" | "status" | "share_percent">,
  adapter: { active_version: Pick<NonNullable<AdapterDetail["active_version"]>, "id"> | null },
): VersionAction[] {
  const isIdle = version.share_percent === 0;
  switch (version.status) {
    case "ready": {
      const actions: VersionAction[] = version.share_percent < 100 ? ["promote"] : [];
      if (adapter.active_version !== null && adapter.active_version.id !== version.id) actions.push("canary");
      return isIdle ? [...actions, "retire", "delete"] : actions;
    }
    case "validating":
    case "retired":
    case "rejected":
      return isIdle ? ["delete"] : [];
    case "deleted":
      return [];
  }
}
