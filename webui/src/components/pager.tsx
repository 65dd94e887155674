import { Button } from "@heroui/react";

interface PagerProps {
  /** The page shown: undefined is the first. */
  cursor: string | undefined;
  next: string | null | undefined;
  onTurn: (cursor: string | undefined) => void;
}

/** Turns the pages of a list whose cursor lives in the URL, so that the browser's Back goes to the page before. */
export function Pager({ cursor, next, onTurn }: PagerProps) {
  if (cursor === undefined && next == null) return null;
  return (
    <nav aria-label="Pages" className="mt-3 flex justify-end gap-2">
      <Button size="sm" variant="outline" isDisabled={cursor === undefined} onPress={() => onTurn(undefined)}>
        Newest
      </Button>
      <Button size="sm" variant="outline" isDisabled={next == null} onPress={() => onTurn(next ?? undefined)}>
        Older
      </Button>
    </nav>
  );
}
