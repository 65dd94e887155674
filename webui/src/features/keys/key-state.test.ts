import { expect, test } from "vitest";

import { keyState } from "./key-state";

const NOON = "2026-11-29T12:00:00Z";

test.each([
  [{ revoked_at: null, expires_at: null }, "active"],
  [{ revoked_at: null, expires_at: "2026-11-29T12:00:01Z" }, "active"],
  [{ revoked_at: null, expires_at: NOON }, "expired"],
  [{ revoked_at: NOON, expires_at: "2030-01-01T00:00:00Z" }, "revoked"],
] as const)("%o is %s", (key, state) => {
  expect(keyState(key, Date.parse(NOON))).toBe(state);
});
