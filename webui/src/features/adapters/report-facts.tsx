import type { ValidationReport } from "@/api/types";

import { factsOf } from "./facts";

/** What validation measured, beside what it found. */
export function ReportFacts({ report }: { report: ValidationReport }) {
  const facts = factsOf(report);
  if (facts.length === 0) return null;
  return (
    <dl className="flex flex-wrap gap-x-6 gap-y-1 text-xs">
      {facts.map(({ name, value }) => (
        <div key={name} className="flex gap-1.5">
          <dt className="text-muted">{name}</dt>
          <dd className="tabular-nums">{value}</dd>
        </div>
      ))}
    </dl>
  );
}
