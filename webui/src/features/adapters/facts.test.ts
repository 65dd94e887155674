import { expect, test } from "vitest";

import { factsOf } from "./facts";

test("plain entries become words, findings and nested ones do not", () => {
  const report = {
    problems: [{ code: "rank", message: "…" }],
    warnings: [],
    accepted: true,
    rank: 16,
    uses_dora: false,
    modules: ["q_proj", "v_proj"],
    largest_weight: 0.123456789,
    nested: { a: 1 },
    nothing: null,
  };
  expect(factsOf(report)).toEqual([
    { name: "rank", value: "16" },
    { name: "uses dora", value: "no" },
    { name: "modules", value: "q_proj, v_proj" },
    { name: "largest weight", value: "0.123457" },
  ]);
});
