import { Button } from "@heroui/react";
import { useEffect, useState } from "react";

import { CheckIcon, CopyIcon } from "./icons";

/** Copies `text`; says so for a moment. `what` names it: "Copy key". */
export function CopyButton({ text, what }: { text: string; what: string }) {
  const [outcome, setOutcome] = useState<"copied" | "failed" | null>(null);

  useEffect(() => {
    if (outcome === null) return;
    const timer = setTimeout(() => setOutcome(null), 2000);
    return () => clearTimeout(timer);
  }, [outcome]);

  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setOutcome("copied");
    } catch {
      // A page without TLS on a remote host has no clipboard: the text stays there to be selected.
      setOutcome("failed");
    }
  };

  return (
    <Button size="sm" variant="outline" onPress={() => void copy()}>
      {outcome === "copied" ? <CheckIcon /> : <CopyIcon />}
      <span aria-live="polite">{outcome === null ? `Copy ${what}` : outcome === "copied" ? "Copied" : "Select and copy by hand"}</span>
    </Button>
  );
}
