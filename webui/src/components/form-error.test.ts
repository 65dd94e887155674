import { expect, test } from "vitest";

import { ApiError, UnreachableError } from "@/api/errors";

import { formError } from "./form-error";

const taken = new ApiError(409, "conflict", "There is a tenant of this name.", "name", null);

test("an error stands beside the field that the API names", () => {
  expect(formError(taken, ["name", "timezone"])).toEqual({ fields: { name: taken.message }, rest: null });
  const zone = new ApiError(400, "invalid_request", "timezone: must be a zone", "timezone", null);
  expect(formError(zone, ["timezone"]).fields).toEqual({ timezone: "must be a zone" });
});

test("an error about something the form does not show is not lost", () => {
  expect(formError(taken, ["timezone"])).toEqual({ fields: {}, rest: taken });
  const away = new UnreachableError();
  expect(formError(away, ["name"])).toEqual({ fields: {}, rest: away });
});
