/** From the API's buckets to what is drawn and added up. Pure. */
import { parseDate, toZoned } from "@internationalized/date";

import type { UsageBucket } from "@/api/types";

import type { Metric, UsageRange } from "./usage-search";

export interface Totals {
  requests: number;
  prompt: number;
  cached: number;
  completion: number;
}

export interface ModelTotals extends Totals {
  model: string;
}

export interface Point {
  /** Start of the bucket, milliseconds. */
  at: number;
  /** By model. */
  values: Record<string, number>;
}

export const modelOf = (item: UsageBucket): string =>
  item.adapter === null ? item.base_model : `${item.base_model}:${item.adapter}`;

/** One line per model, the largest first. */
export function totalsByModel(items: readonly UsageBucket[]): ModelTotals[] {
  const totals = new Map<string, ModelTotals>();
  for (const item of items) {
    const model = modelOf(item);
    const sum = totals.get(model) ?? { model, requests: 0, prompt: 0, cached: 0, completion: 0 };
    totals.set(model, { model, ...add(sum, countsOf(item)) });
  }
  return [...totals.values()].sort((a, b) => tokens(b) - tokens(a) || a.model.localeCompare(b.model));
}

export const grandTotal = (totals: readonly Totals[]): Totals =>
  totals.reduce(add, { requests: 0, prompt: 0, cached: 0, completion: 0 });

/** A point for every bucket of the range, also for those in which nothing happened, which the API leaves out. */
export function pointsOf(
  items: readonly UsageBucket[],
  range: UsageRange,
  timeZone: string,
  metric: Metric,
): Point[] {
  const points = new Map<number, Point>(bucketStarts(range, timeZone).map((at) => [at, { at, values: {} }]));
  for (const item of items) {
    const at = Date.parse(item.bucket_start);
    const point = points.get(at) ?? { at, values: {} };
    const model = modelOf(item);
    const value = metric === "requests" ? item.requests : item.prompt_tokens + item.completion_tokens;
    point.values[model] = (point.values[model] ?? 0) + value;
    points.set(at, point);
  }
  return [...points.values()].sort((a, b) => a.at - b.at);
}

const HOUR_MS = 3_600_000;

function bucketStarts({ from, to, bucket }: UsageRange, timeZone: string): number[] {
  const first = parseDate(from);
  const end = parseDate(to).add({ days: 1 });
  const starts: number[] = [];
  if (bucket === "day") {
    for (let day = first; day.compare(end) < 0; day = day.add({ days: 1 })) starts.push(midnight(day));
  } else {
    for (let at = midnight(first); at < midnight(end); at += HOUR_MS) starts.push(at);
  }
  return starts;

  function midnight(day: typeof first): number {
    return toZoned(day, timeZone).toDate().getTime();
  }
}

const tokens = (totals: Totals): number => totals.prompt + totals.completion;

const countsOf = (item: UsageBucket): Totals => ({
  requests: item.requests,
  prompt: item.prompt_tokens,
  cached: item.cached_tokens,
  completion: item.completion_tokens,
});

const add = (a: Totals, b: Totals): Totals => ({
  requests: a.requests + b.requests,
  prompt: a.prompt + b.prompt,
  cached: a.cached + b.cached,
  completion: a.completion + b.completion,
});
