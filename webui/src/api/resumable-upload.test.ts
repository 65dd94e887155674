import { beforeAll, expect, test, vi } from "vitest";

import { ApiError, UnreachableError } from "./errors";

let patiently: (typeof import("./resumable-upload"))["patiently"];

beforeAll(async () => {
  vi.stubGlobal("window", { location: { origin: "http://localhost" } });
  ({ patiently } = await import("./resumable-upload"));
});

const busy = new ApiError(409, "busy", "try again", null, null);
const refused = new ApiError(400, "invalid", "no", null, null);

test("what passes is tried again, with a look before", async () => {
  const call = vi.fn().mockRejectedValueOnce(new UnreachableError()).mockRejectedValueOnce(busy).mockResolvedValue("done");
  const look = vi.fn().mockResolvedValue(undefined);
  await expect(patiently(call, look, new AbortController().signal, 0)).resolves.toBe("done");
  expect(call).toHaveBeenCalledTimes(3);
  expect(look).toHaveBeenCalledTimes(2);
});

test("a look that fails is tried again too", async () => {
  const call = vi.fn().mockRejectedValueOnce(new UnreachableError()).mockResolvedValue("done");
  const look = vi.fn().mockRejectedValueOnce(new UnreachableError()).mockResolvedValue(undefined);
  await expect(patiently(call, look, new AbortController().signal, 0)).resolves.toBe("done");
  expect(call).toHaveBeenCalledTimes(2);
});

test("a refusal is told at once", async () => {
  const call = vi.fn().mockRejectedValue(refused);
  await expect(patiently(call, vi.fn(), new AbortController().signal, 0)).rejects.toBe(refused);
  expect(call).toHaveBeenCalledTimes(1);
});

test("it does not go on for ever", async () => {
  const call = vi.fn().mockRejectedValue(new UnreachableError());
  await expect(patiently(call, vi.fn(), new AbortController().signal, 0)).rejects.toBeInstanceOf(UnreachableError);
  expect(call).toHaveBeenCalledTimes(6);
});

test("nor after it was cancelled", async () => {
  const running = new AbortController();
  const call = vi.fn().mockImplementation(() => {
    running.abort();
    return Promise.reject(new UnreachableError());
  });
  await expect(patiently(call, vi.fn(), running.signal, 0)).rejects.toBeInstanceOf(UnreachableError);
  expect(call).toHaveBeenCalledTimes(1);
});
