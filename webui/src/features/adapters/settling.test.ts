import { expect, test } from "vitest";

import { isSettling } from "./settling";

const version = (number: number, status: "validating" | "ready" | "rejected") => ({ number, status });

test.each([
  ["nothing yet", null, [], false],
  ["in validation", null, [version(1, "validating")], true],
  ["rejected", null, [version(1, "rejected")], false],
  ["serving", version(1, "ready"), [version(1, "ready")], false],
  ["taking over", version(1, "ready"), [version(2, "ready"), version(1, "ready")], true],
  ["the newest is no good", version(2, "ready"), [version(3, "rejected"), version(2, "ready"), version(1, "ready")], false],
])("%s", (_, active_version, versions, settling) => {
  expect(isSettling({ active_version, versions })).toBe(settling);
});
