import type { ModuleReport } from "@/api/types";
import { type Column, DataTable } from "@/components/data-table";

import { moduleSummary } from "./module-summary";

const columns: readonly Column<ModuleReport>[] = [
  { header: "Module", cell: ({ module }) => <code className="font-mono text-xs">{module}</code> },
  { header: "Rank", align: "end", cell: ({ rank }) => rank },
  { header: "Scaling", align: "end", cell: ({ scaling }) => scaling.toPrecision(3) },
  { header: "Norm of the change", align: "end", cell: ({ delta_norm: norm }) => norm?.toPrecision(3) ?? "not known yet" },
];

/** What the adapter changes: a line, and module by module for who wants to know. */
export function ReportModules({ modules }: { modules: readonly ModuleReport[] }) {
  if (modules.length === 0) return null;
  return (
    <details>
      <summary className="cursor-pointer text-xs text-muted hover:text-foreground">{moduleSummary(modules)}</summary>
      <div className="mt-2 max-h-80 overflow-y-auto">
        <DataTable label="Modules" columns={columns} rows={modules} rowKey={({ module }) => module} empty={null} />
      </div>
    </details>
  );
}
