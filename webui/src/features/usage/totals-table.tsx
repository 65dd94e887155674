import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { formatCount } from "@/format/quantities";

import { grandTotal, type ModelTotals } from "./series";
import { seriesColor } from "./series-color";

export function TotalsTable({ totals }: { totals: readonly ModelTotals[] }) {
  const all = grandTotal(totals);
  const columns: readonly Column<ModelTotals>[] = [
    {
      header: "Model",
      cell: (line) => (
        <span className="flex items-center gap-2">
          <span aria-hidden className="size-2.5 rounded-xs" style={{ background: seriesColor(totals.indexOf(line)) }} />
          <span className="font-mono text-xs">{line.model}</span>
        </span>
      ),
    },
    { header: "Requests", align: "end", cell: (line) => formatCount(line.requests) },
    { header: "Prompt tokens", align: "end", cell: (line) => formatCount(line.prompt) },
    { header: "of these cached", align: "end", cell: (line) => formatCount(line.cached) },
    { header: "Completion tokens", align: "end", cell: (line) => formatCount(line.completion) },
  ];
  return (
    <DataTable
      label="Totals by model"
      columns={columns}
      rows={totals}
      rowKey={(line) => line.model}
      empty={null}
      footer={
        <tr className="text-end tabular-nums">
          <th scope="row" className="px-3 py-2 text-start font-medium">
            Total
          </th>
          {[all.requests, all.prompt, all.cached, all.completion].map((value, column) => (
            <td key={column} className="px-3 py-2">
              {formatCount(value)}
            </td>
          ))}
        </tr>
      }
    />
  );
}
