import { Skeleton } from "@heroui/react";
import { useQuery } from "@tanstack/react-query";

import type { UsageBucket } from "@/api/types";
import { Panel } from "@/components/data-table";
import { EmptyNote } from "@/components/notes";
import { SectionHeader } from "@/components/page-header";
import { QueryBoundary } from "@/components/query-boundary";

import { usageQuery } from "./api/get-usage";
import { pointsOf, totalsByModel } from "./series";
import { TotalsTable } from "./totals-table";
import { UsageChart } from "./usage-chart";
import { UsageControls } from "./usage-controls";
import { type Metric, tenantToday, type UsageRange, usageRange, type UsageSearch } from "./usage-search";

interface UsagePageProps {
  tenantId: string;
  timeZone: string;
  search: UsageSearch;
  onSearch: (search: UsageSearch) => void;
}

export function UsagePage({ tenantId, timeZone, search, onSearch }: UsagePageProps) {
  const range = usageRange(search, tenantToday(timeZone));
  const metric = search.metric ?? "tokens";
  const query = useQuery(usageQuery(tenantId, range));

  return (
    <>
      <SectionHeader title="Usage" description={`What was delivered, in the tenant's time zone (${timeZone}).`} />
      <UsageControls
        range={range}
        metric={metric}
        timeZone={timeZone}
        onChange={(change) => onSearch({ ...search, ...change })}
      />
      <QueryBoundary query={query} loading={<Skeleton className="h-72 rounded-lg" />}>
        {({ items }) => <UsageReport items={items} range={range} timeZone={timeZone} metric={metric} />}
      </QueryBoundary>
    </>
  );
}

interface UsageReportProps {
  items: readonly UsageBucket[];
  range: UsageRange;
  timeZone: string;
  metric: Metric;
}

function UsageReport({ items, range, timeZone, metric }: UsageReportProps) {
  if (items.length === 0) {
    return (
      <Panel>
        <EmptyNote title="Nothing was used in these days">Usage appears here seconds after a request has ended.</EmptyNote>
      </Panel>
    );
  }
  const totals = totalsByModel(items);
  return (
    <div className="flex flex-col gap-4">
      <Panel className="p-3">
        <UsageChart
          points={pointsOf(items, range, timeZone, metric)}
          models={totals.map(({ model }) => model)}
          bucket={range.bucket}
          timeZone={timeZone}
        />
      </Panel>
      <TotalsTable totals={totals} />
    </div>
  );
}
