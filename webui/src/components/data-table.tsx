import type { ReactNode } from "react";

export interface Column<Row> {
  header: string;
  cell: (row: Row) => ReactNode;
  align?: "end";
  /** Shrink to the content. */
  fit?: boolean;
}

interface DataTableProps<Row> {
  /** What the table lists, for those who cannot see it. */
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string | number;
  /** Shown in place of the table when there are no rows. */
  empty: ReactNode;
  isMuted?: (row: Row) => boolean;
  footer?: ReactNode;
}

export function DataTable<Row>({ label, columns, rows, rowKey, empty, isMuted, footer }: DataTableProps<Row>) {
  if (rows.length === 0) return <Panel>{empty}</Panel>;
  return (
    <Panel>
      <div className="overflow-x-auto">
        <table aria-label={label} className="w-full border-collapse">
          <thead>
            <tr className="border-b border-border bg-surface-secondary text-xs text-muted">
              {columns.map((column) => (
                <th key={column.header} scope="col" className={`px-3 py-2 font-medium ${alignment(column)}`}>
                  {column.header}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr
                key={rowKey(row)}
                className={`border-b border-separator last:border-0 hover:bg-default/40 ${isMuted?.(row) ? "text-muted" : ""}`}
              >
                {columns.map((column) => (
                  <td key={column.header} className={`px-3 py-1.5 align-middle ${alignment(column)}`}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
          {footer != null && <tfoot className="border-t border-border font-medium">{footer}</tfoot>}
        </table>
      </div>
    </Panel>
  );
}

export function Panel({ children, className = "" }: { children: ReactNode; className?: string }) {
  return <div className={`overflow-hidden rounded-lg border border-border bg-surface ${className}`}>{children}</div>;
}

function alignment<Row>({ align, fit }: Column<Row>): string {
  return `${align === "end" ? "text-end tabular-nums" : "text-start"} ${fit ? "w-px whitespace-nowrap" : ""}`;
}
