import { parseDate } from "@internationalized/date";
import { expect, test } from "vitest";

import { recentMonths } from "./months";

test("months go back over the year, also from a 31st", () => {
  expect(recentMonths(parseDate("2026-03-31"), 4)).toEqual([
    { value: "2026-03", label: "March 2026" },
    { value: "2026-02", label: "February 2026" },
    { value: "2026-01", label: "January 2026" },
    { value: "2025-12", label: "December 2025" },
  ]);
});
