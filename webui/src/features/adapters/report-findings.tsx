import type { Finding, ValidationReport } from "@/api/types";
import { ErrorIcon, WarningIcon } from "@/components/icons";

import { remedyOf } from "./remedies";

/** What validation found, each with the place it is about: enough to mend the adapter by. */
export function ReportFindings({ report }: { report: ValidationReport }) {
  const { problems = [], warnings = [] } = report;
  if (problems.length === 0 && warnings.length === 0) return null;
  return (
    <ul aria-label="What validation found" className="flex flex-col gap-2">
      {problems.map((finding, index) => (
        <Line key={`problem-${index}`} finding={finding} isProblem />
      ))}
      {warnings.map((finding, index) => (
        <Line key={`warning-${index}`} finding={finding} isProblem={false} />
      ))}
    </ul>
  );
}

function Line({ finding, isProblem }: { finding: Finding; isProblem: boolean }) {
  const remedy = remedyOf(finding.code);
  const Icon = isProblem ? ErrorIcon : WarningIcon;
  return (
    <li className="flex items-start gap-2">
      <Icon className={`mt-0.5 size-4 ${isProblem ? "text-danger" : "text-warning"}`} />
      <div className="min-w-0">
        <p className="break-words">{finding.message}</p>
        {remedy && <p className="mt-0.5 break-words text-muted">What to do: {remedy}</p>}
        <p className="mt-0.5 flex flex-wrap gap-x-3 font-mono text-xs text-muted">
          <span>{finding.code}</span>
          {"param" in finding && finding.param !== null && <span className="break-all">{finding.param}</span>}
        </p>
      </div>
    </li>
  );
}
