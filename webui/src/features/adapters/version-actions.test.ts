import { expect, test } from "vitest";

import { actionsOf } from "./version-actions";

const active = { active_version: { id: "1" } };
const version = { id: "2", status: "ready", share_percent: 0 } as const;

test("what serves can only be replaced", () => {
  expect(actionsOf({ ...version, id: "1", share_percent: 100 }, active)).toEqual([]);
  expect(actionsOf({ ...version, id: "1", share_percent: 90 }, active)).toEqual(["promote"]);
});

test("a canary's share can be changed, and it can be promoted", () => {
  expect(actionsOf({ ...version, share_percent: 10 }, active)).toEqual(["promote", "canary"]);
});

test("a version that waits can become anything", () => {
  expect(actionsOf(version, active)).toEqual(["promote", "canary", "retire", "delete"]);
});

test("without one that serves there is nothing to share requests with", () => {
  expect(actionsOf(version, { active_version: null })).toEqual(["promote", "retire", "delete"]);
});

test("what can answer nobody can only go", () => {
  for (const status of ["validating", "rejected", "retired"] as const) {
    expect(actionsOf({ ...version, status }, active)).toEqual(["delete"]);
  }
  expect(actionsOf({ ...version, status: "deleted" }, active)).toEqual([]);
});
