import { parseDate } from "@internationalized/date";
import { expect, test } from "vitest";

import { parseUsageSearch, presetRange, usageRange } from "./usage-search";

const now = parseDate("2026-03-31");

test("what the URL leaves out is the last 30 days, by day", () => {
  expect(usageRange(parseUsageSearch({}), now)).toEqual({ from: "2026-03-02", to: "2026-03-31", bucket: "day" });
});

test("what is no day in the URL is left out", () => {
  expect(parseUsageSearch({ from: "2026-02-30", to: 7, bucket: "year", metric: "money" })).toEqual({});
});

test.each([
  ["7 days", "2026-03-25", "2026-03-31"],
  ["this month", "2026-03-01", "2026-03-31"],
  ["last month", "2026-02-01", "2026-02-28"],
] as const)("%s is %s to %s", (preset, from, to) => {
  expect(presetRange(preset, now)).toEqual({ from, to });
});
