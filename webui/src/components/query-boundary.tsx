import { Skeleton } from "@heroui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { ErrorNote } from "./notes";

interface QueryBoundaryProps<Data> {
  query: UseQueryResult<Data>;
  loading?: ReactNode;
  children: (data: Data) => ReactNode;
}

/** Shows a query's data; until there is any, a placeholder or why there is none. A failed refresh keeps the data. */
export function QueryBoundary<Data>({ query, loading, children }: QueryBoundaryProps<Data>) {
  const { data, error, refetch } = query;
  const note = error && <ErrorNote error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return note ?? loading ?? <LoadingLines />;
  return (
    <>
      {note && <div className="mb-3">{note}</div>}
      {children(data)}
    </>
  );
}

export function LoadingLines({ lines = 4 }: { lines?: number }) {
  return (
    <div role="status" aria-label="Loading" className="flex flex-col gap-2.5 py-2">
      {Array.from({ length: lines }, (_, line) => (
        <Skeleton key={line} className="h-4 rounded" style={{ width: `${90 - ((line * 17) % 40)}%` }} />
      ))}
    </div>
  );
}
