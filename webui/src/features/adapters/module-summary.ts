import type { ModuleReport } from "@/api/types";

/** "60 modules (q_proj, v_proj), rank 8": what an adapter changes, in a line. */
export function moduleSummary(modules: readonly ModuleReport[]): string {
  const kinds = [...new Set(modules.map(({ module }) => module.slice(module.lastIndexOf(".") + 1)))].sort();
  const ranks = modules.map(({ rank }) => rank);
  const least = Math.min(...ranks);
  const most = Math.max(...ranks);
  const noun = modules.length === 1 ? "module" : "modules";
  return `${modules.length} ${noun} (${kinds.join(", ")}), rank ${least === most ? least : `${least} to ${most}`}`;
}
