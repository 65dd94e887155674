import { expect, test } from "vitest";

import { storedLine } from "./stored";

test("what is stored, of what may be", () => {
  const used = { used_adapters: 1, used_bytes: 1536 };
  expect(storedLine({ ...used, max_adapters: 20, max_bytes: 10 * 2 ** 30 })).toBe("1 of 20 adapters, 1.5 KiB of 10.0 GiB stored");
  expect(storedLine({ ...used, max_adapters: null, max_bytes: null })).toBe("1 adapter, 1.5 KiB stored");
  expect(storedLine({ ...used, max_adapters: 0, max_bytes: null })).toBe("1 of 0 adapters, 1.5 KiB stored");
});
