"""Stop strings: seen across token boundaries, and never shown, not even in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Passed:
    """What may be shown now, and whether a stop string ended the text here."""

    text: str
    stopped: bool


class StopMatcher:
    """Holds text back for as long as it could still become a stop string.

    Invariant: what is held is the longest end of the text that is a proper beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> Passed:
        """Add text. Of several stop strings that `piece` completes, the one that begins first wins."""
        if not self._stops:
            return Passed(piece, stopped=False)
        text = self._held + piece
        found = [position for stop in self._stops if (position := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return Passed(text[: min(found)], stopped=True)
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return Passed(text[: len(text) - keep], stopped=False)

    def flush(self) -> str:
        """The text that is still held, once nothing can follow it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, shorter than `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
