import { expect, test } from "vitest";

import { formatAge, formatInstant } from "./instants";

test("an instant is shown in the zone that is named", () => {
  expect(formatInstant("2026-11-30T23:30:00Z", "Europe/Berlin")).toBe("2026-12-01 00:30");
  expect(formatInstant("2026-11-30T23:30:00Z", "UTC")).toBe("2026-11-30 23:30");
});

test.each([
  ["2026-11-29T11:59:30Z", "30 seconds ago"],
  ["2026-11-29T11:00:00Z", "1 hour ago"],
  ["2026-11-28T12:00:00Z", "yesterday"],
  ["2027-02-28T12:00:00Z", "in 3 months"],
  ["2024-11-29T12:00:00Z", "2 years ago"],
])("%s reads %s", (instant, text) => {
  expect(formatAge(instant, Date.parse("2026-11-29T12:00:00Z"))).toBe(text);
});
