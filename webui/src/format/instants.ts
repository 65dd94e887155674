/** Instants as people read them: "2026-11-29 14:05", in the reader's zone or in one that is named. */

export function formatInstant(instant: string, timeZone?: string): string {
  return new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short", timeZone }).format(new Date(instant));
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const STEPS = [
  ["second", 60],
  ["minute", 60],
  ["hour", 24],
  ["day", 30],
  ["month", 12],
] as const;

/** "3 minutes ago", as seen at `now` (milliseconds). */
export function formatAge(instant: string, now: number): string {
  let value = (Date.parse(instant) - now) / 1000;
  for (const [unit, size] of STEPS) {
    if (Math.abs(value) < size) return relative.format(Math.round(value), unit);
    value /= size;
  }
  return relative.format(Math.round(value), "year");
}
