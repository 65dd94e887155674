import type { AdapterQuota } from "@/api/types";
import { formatBytes, formatCount } from "@/format/quantities";

/** "3 of 20 adapters, 1.2 MiB of 10.0 GiB stored": what a tenant stores of what it may. */
export function storedLine(quota: AdapterQuota): string {
  const adapters = ofMost(formatCount(quota.used_adapters), quota.max_adapters, formatCount);
  const noun = quota.max_adapters === null && quota.used_adapters === 1 ? "adapter" : "adapters";
  return `${adapters} ${noun}, ${ofMost(formatBytes(quota.used_bytes), quota.max_bytes, formatBytes)} stored`;
}

const ofMost = (used: string, most: number | null, format: (value: number) => string): string =>
  most === null ? used : `${used} of ${format(most)}`;
