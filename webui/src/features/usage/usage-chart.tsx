import { Bar, BarChart, CartesianGrid, ResponsiveContainer, Tooltip, XAxis, YAxis } from "recharts";

import { formatCompact, formatCount } from "@/format/quantities";

import type { Point } from "./series";
import { seriesColor } from "./series-color";
import type { Bucket } from "./usage-search";

interface UsageChartProps {
  points: readonly Point[];
  /** Bottom to top. */
  models: readonly string[];
  bucket: Bucket;
  timeZone: string;
}

const TICK = { fill: "var(--muted)", fontSize: 11 };

export function UsageChart({ points, models, bucket, timeZone }: UsageChartProps) {
  const axis = new Intl.DateTimeFormat("en", { timeZone, day: "numeric", month: "short", ...(bucket === "hour" && HOUR) });
  const full = new Intl.DateTimeFormat("en", { timeZone, dateStyle: "medium", hourCycle: "h23", ...(bucket === "hour" && { timeStyle: "short" }) });

  return (
    <ResponsiveContainer width="100%" height={260}>
      <BarChart data={[...points]} margin={{ top: 8, right: 8, bottom: 0, left: 0 }} barCategoryGap="18%">
        <CartesianGrid vertical={false} stroke="var(--separator)" />
        <XAxis
          dataKey="at"
          tickFormatter={(at: number) => axis.format(at)}
          tick={TICK}
          tickLine={false}
          axisLine={{ stroke: "var(--border)" }}
          minTickGap={24}
        />
        <YAxis tickFormatter={formatCompact} tick={TICK} tickLine={false} axisLine={false} width={44} allowDecimals={false} />
        <Tooltip
          cursor={{ fill: "var(--default)", opacity: 0.5 }}
          labelFormatter={(at) => full.format(Number(at))}
          itemSorter={(item) => models.indexOf(String(item.name))}
          formatter={(value) => formatCount(Number(value))}
          contentStyle={{ background: "var(--overlay)", border: "1px solid var(--border)", borderRadius: 6, fontSize: 12 }}
          itemStyle={{ padding: 0 }}
          labelStyle={{ fontWeight: 600, marginBottom: 2 }}
        />
        {models.map((model, index) => (
          <Bar
            key={model}
            name={model}
            dataKey={(point: Point) => point.values[model] ?? null}
            stackId="usage"
            fill={seriesColor(index)}
            isAnimationActive={false}
          />
        ))}
      </BarChart>
    </ResponsiveContainer>
  );
}

const HOUR = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } as const;
