import type { AdapterVersion } from "@/api/types";
import { StatusChip, type Tone } from "@/components/status-chip";

const TONES: Record<AdapterVersion["status"], Tone> = {
  validating: "busy",
  ready: "good",
  rejected: "bad",
  retired: "quiet",
  deleted: "quiet",
};

export function VersionStatusChip({ status }: { status: AdapterVersion["status"] }) {
  return <StatusChip tone={TONES[status]}>{status}</StatusChip>;
}
