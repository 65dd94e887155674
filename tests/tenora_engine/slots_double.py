"""Device slots that only remember what lies in which."""

from __future__ import annotations


class Slots:
    def __init__(self) -> None:
        self.content: dict[int, str] = {}

    def install(self, slot: int, placed: str) -> None:
        self.content[slot] = placed

    def clear(self, slot: int) -> None:
        self.content.pop(slot, None)
