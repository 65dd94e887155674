import { expect, test } from "vitest";

import { choiceOf, limitOf } from "./limits";

test("QTA-06: unlimited and blocked are told apart", () => {
  expect(limitOf({ isUnlimited: true, text: "60" })).toBeNull();
  expect(limitOf({ isUnlimited: false, text: "0" })).toBe(0);
});

test.each([0, 1, 1_000_000_000_000, null])("%s survives being shown and saved", (limit) => {
  expect(limitOf(choiceOf(limit))).toBe(limit);
});

test("digits may be grouped", () => {
  expect(limitOf({ isUnlimited: false, text: "1,000 000" })).toBe(1_000_000);
});

test.each(["", "-1", "0.5", "1e3", "NaN", "ten", "99999999999999"])("QTA-06: %o is no limit", (text) => {
  expect(limitOf({ isUnlimited: false, text })).toBeUndefined();
});
