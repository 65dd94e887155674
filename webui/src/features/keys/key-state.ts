import type { ApiKey } from "@/api/types";

export type KeyState = "active" | "expired" | "revoked";

/** At `now`, in milliseconds. */
export function keyState(key: Pick<ApiKey, "revoked_at" | "expires_at">, now: number): KeyState {
  if (key.revoked_at !== null) return "revoked";
  return key.expires_at !== null && Date.parse(key.expires_at) <= now ? "expired" : "active";
}
