import { formatInstant } from "@/format/instants";

/** An instant in the reader's own zone; the exact one, in UTC, on hover. */
export function Instant({ at, timeZone }: { at: string; timeZone?: string }) {
  return (
    <time dateTime={at} title={at} className="whitespace-nowrap tabular-nums">
      {formatInstant(at, timeZone)}
    </time>
  );
}
