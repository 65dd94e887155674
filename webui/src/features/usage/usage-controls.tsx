import { Button } from "@heroui/react";

import { SelectInput, TextInput } from "@/components/fields";

import { type Bucket, type Metric, presetRange, PRESETS, tenantToday, type UsageRange, type UsageSearch } from "./usage-search";

const BUCKETS: readonly { value: Bucket; label: string }[] = [
  { value: "day", label: "By day" },
  { value: "hour", label: "By hour" },
];
const METRICS: readonly { value: Metric; label: string }[] = [
  { value: "tokens", label: "Tokens" },
  { value: "requests", label: "Requests" },
];

interface UsageControlsProps {
  range: UsageRange;
  metric: Metric;
  timeZone: string;
  onChange: (change: UsageSearch) => void;
}

export function UsageControls({ range, metric, timeZone, onChange }: UsageControlsProps) {
  const now = tenantToday(timeZone);
  return (
    <div className="mb-4 flex flex-wrap items-end gap-3">
      <TextInput
        label="From"
        name="from"
        type="date"
        className="w-36"
        max={range.to}
        value={range.from}
        onChange={(from) => from !== "" && onChange({ from })}
      />
      <TextInput
        label="To"
        name="to"
        type="date"
        className="w-36"
        min={range.from}
        value={range.to}
        onChange={(to) => to !== "" && onChange({ to })}
      />
      <SelectInput
        label="Buckets"
        className="w-28"
        value={range.bucket}
        options={BUCKETS}
        onChange={(bucket) => onChange({ bucket })}
      />
      <SelectInput
        label="Show"
        className="w-28"
        value={metric}
        options={METRICS}
        onChange={(chosen) => onChange({ metric: chosen })}
      />
      <div role="group" aria-label="Common ranges" className="flex flex-wrap gap-1">
        {PRESETS.map((preset) => {
          const wanted = presetRange(preset, now);
          const isChosen = wanted.from === range.from && wanted.to === range.to;
          return (
            <Button
              key={preset}
              size="sm"
              variant={isChosen ? "secondary" : "ghost"}
              aria-pressed={isChosen}
              onPress={() => onChange(wanted)}
            >
              {preset}
            </Button>
          );
        })}
      </div>
    </div>
  );
}
