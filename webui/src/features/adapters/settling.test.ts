import { expect, test } from "vitest";

import { isSettling } from "./settling";

test("an adapter is settling while one of its versions is in validation", () => {
  expect(isSettling({ versions: [{ status: "validating" }, { status: "ready" }] })).toBe(true);
  expect(isSettling({ versions: [{ status: "ready" }, { status: "retired" }, { status: "rejected" }] })).toBe(false);
  expect(isSettling({ versions: [] })).toBe(false);
});
