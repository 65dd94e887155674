import { expect, test } from "vitest";

import { backTarget } from "./back-target";

test("a place of this UI is gone back to", () => {
  expect(backTarget("/tenants/1/usage?bucket=hour")).toBe("/tenants/1/usage?bucket=hour");
});

test.each(["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/sign-in?back=/x", 7, undefined])(
  "%s is not",
  (back) => {
    expect(backTarget(back)).toBe("/");
  },
);
