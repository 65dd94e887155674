import { expect, test } from "vitest";

import { formatBytes, formatCount } from "./quantities";

test.each([
  [0, "0 B"],
  [1023, "1023 B"],
  [1024, "1.0 KiB"],
  [1_572_864, "1.5 MiB"],
  [300 * 2 ** 20, "300 MiB"],
  [2 ** 60, "1048576 TiB"],
])("%d bytes read %s", (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

test("counts are grouped", () => {
  expect(formatCount(1234567)).toBe("1,234,567");
});
