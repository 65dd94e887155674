import { type CalendarDate, startOfMonth } from "@internationalized/date";

export interface Month {
  /** Such as 2026-11. */
  value: string;
  label: string;
}

const NAMES = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" });

/** The month of `now` and those before it, newest first. */
export function recentMonths(now: CalendarDate, count: number): Month[] {
  return Array.from({ length: count }, (_, ago) => {
    const month = startOfMonth(now).subtract({ months: ago });
    return { value: month.toString().slice(0, 7), label: NAMES.format(month.toDate("UTC")) };
  });
}
