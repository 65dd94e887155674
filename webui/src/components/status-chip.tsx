import { Chip, Spinner } from "@heroui/react";

const TONES = {
  good: "success",
  busy: "accent",
  bad: "danger",
  quiet: "default",
  caution: "warning",
} as const;

export type Tone = keyof typeof TONES;

export function StatusChip({ tone, children }: { tone: Tone; children: string }) {
  return (
    <Chip size="sm" variant="soft" color={TONES[tone]} className="gap-1.5 px-2">
      {tone === "busy" && <Spinner size="sm" className="size-3" />}
      {children}
    </Chip>
  );
}
