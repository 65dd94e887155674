// @vitest-environment node
import { readFileSync } from "node:fs";

import openapiTS, { astToString } from "openapi-typescript";
import { expect, test } from "vitest";

test("the client's types are generated from the description beside them", async () => {
  const description = new URL("../../openapi.json", import.meta.url);
  const types = astToString(await openapiTS(description));
  const committed = readFileSync(new URL("schema.gen.ts", import.meta.url), "utf8");
  expect(committed.endsWith(types), "run: npm run generate").toBe(true);
});
