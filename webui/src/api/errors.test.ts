import { expect, test } from "vitest";

import { ApiError, errorOf, isSignedOut, UnreachableError } from "./errors";

test("the API's own words are kept", () => {
  const report = { problems: [{ code: "rank", message: "r is 0", param: "r" }] };
  const error = errorOf(400, { error: { code: "rejected", message: "The adapter was refused.", param: "files", report } });
  expect(error).toMatchObject({ status: 400, code: "rejected", message: "The adapter was refused.", param: "files", report });
});

test.each([null, "<html>Bad gateway</html>", {}, { error: null }, { error: { code: 7, message: "no" } }])(
  "an answer that is not the API's (%o) is still an error to show",
  (body) => {
    expect(errorOf(502, body).message).toBe("The platform answered 502 without saying why.");
  },
);

test("only a 401 means signed out", () => {
  expect(isSignedOut(new ApiError(401, "unauthenticated", "", null, null))).toBe(true);
  expect(isSignedOut(new ApiError(403, "forbidden", "", null, null))).toBe(false);
  expect(isSignedOut(new UnreachableError())).toBe(false);
});
