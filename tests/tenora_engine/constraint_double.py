"""A grammar over token ids: at each place a set of allowed ones. Its forced text is their numbers in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch


class Script:
    """One set of tokens for each place; the last place is for an end token."""

    def __init__(self, places: Sequence[Collection[int]], *, raises_at: int | None = None) -> None:
        self.places = [frozenset(place) for place in places]
        self.at = 0
        self.raises_at = raises_at  # place at which the next `fill` fails

    def fill(self, mask: torch.Tensor) -> None:
        if self.at == self.raises_at:
            raise RuntimeError("injected")
        mask.zero_()
        for token in self.places[self.at]:
            mask[token // 32] |= 1 << token % 32 if token % 32 < 31 else -(2**31)

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or token_id not in self.places[self.at]:
            return False
        self.at += 1
        return True

    def rollback(self, count: int) -> None:
        self.at -= count

    def forced_text(self) -> str:
        forced: list[int] = []
        for place in self.places[self.at :]:
            if len(place) > 1:
                break
            forced += place
        return " ".join(map(str, forced))

    @property
    def is_terminated(self) -> bool:
        return self.at == len(self.places)


def tokenize(text: str) -> list[int]:
    return [int(word) for word in text.split()]
