import { expect, test } from "vitest";

import type { UsageBucket } from "@/api/types";

import { grandTotal, pointsOf, totalsByModel } from "./series";

const item = (bucket_start: string, adapter: string | null, tokens: number): UsageBucket => ({
  bucket_start,
  base_model: "smollm2-135m",
  adapter,
  requests: 1,
  prompt_tokens: tokens,
  cached_tokens: 0,
  completion_tokens: tokens * 2,
});

const items = [
  item("2026-03-28T00:00:00+01:00", "pirate", 10),
  item("2026-03-30T00:00:00+02:00", "pirate", 1),
  item("2026-03-30T00:00:00+02:00", null, 100),
];

test("every day of the range is there, also over a change of the clocks", () => {
  const range = { from: "2026-03-28", to: "2026-03-30", bucket: "day" } as const;
  const points = pointsOf(items, range, "Europe/Berlin", "tokens");
  expect(points.map(({ at }) => new Date(at).toISOString())).toEqual([
    "2026-03-27T23:00:00.000Z",
    "2026-03-28T23:00:00.000Z",
    "2026-03-29T22:00:00.000Z",
  ]);
  expect(points.map(({ values }) => values)).toEqual([
    { "smollm2-135m:pirate": 30 },
    {},
    { "smollm2-135m:pirate": 3, "smollm2-135m": 300 },
  ]);
});

test("the day on which the clocks go forward has 23 hours", () => {
  const range = { from: "2026-03-29", to: "2026-03-29", bucket: "hour" } as const;
  expect(pointsOf([], range, "Europe/Berlin", "requests")).toHaveLength(23);
});

test("totals are exact, the largest model first", () => {
  const totals = totalsByModel(items);
  expect(totals.map(({ model, prompt }) => [model, prompt])).toEqual([
    ["smollm2-135m", 100],
    ["smollm2-135m:pirate", 11],
  ]);
  expect(grandTotal(totals)).toEqual({ requests: 3, prompt: 111, cached: 0, completion: 222 });
});
