/** What of a tenant's usage is shown: all of it lives in the URL. */
import { type CalendarDate, endOfMonth, parseDate, startOfMonth, today } from "@internationalized/date";

export type Bucket = "day" | "hour";
export type Metric = "tokens" | "requests";

/** Days of the tenant, both included. */
export interface UsageRange {
  from: string;
  to: string;
  bucket: Bucket;
}

export interface UsageSearch {
  from?: string;
  to?: string;
  bucket?: Bucket;
  metric?: Metric;
}

export const PRESETS = ["7 days", "30 days", "this month", "last month"] as const;
export type Preset = (typeof PRESETS)[number];

export function parseUsageSearch(search: Record<string, unknown>): UsageSearch {
  return {
    from: day(search.from),
    to: day(search.to),
    bucket: search.bucket === "hour" ? "hour" : undefined,
    metric: search.metric === "requests" ? "requests" : undefined,
  };
}

/** The range asked for; what is missing is the last 30 days up to `now`, a day of the tenant. */
export function usageRange(search: UsageSearch, now: CalendarDate): UsageRange {
  const to = search.to ?? now.toString();
  const from = search.from ?? parseDate(to).subtract({ days: 29 }).toString();
  return { from, to, bucket: search.bucket ?? "day" };
}

export function presetRange(preset: Preset, now: CalendarDate): Pick<UsageRange, "from" | "to"> {
  const range = (from: CalendarDate, to: CalendarDate) => ({ from: from.toString(), to: to.toString() });
  switch (preset) {
    case "7 days":
      return range(now.subtract({ days: 6 }), now);
    case "30 days":
      return range(now.subtract({ days: 29 }), now);
    case "this month":
      return range(startOfMonth(now), now);
    case "last month": {
      const month = startOfMonth(now).subtract({ months: 1 });
      return range(month, endOfMonth(month));
    }
  }
}

export const tenantToday = (timeZone: string): CalendarDate => today(timeZone);

function day(value: unknown): string | undefined {
  if (typeof value !== "string") return undefined;
  try {
    return parseDate(value).toString();
  } catch {
    return undefined;
  }
}
