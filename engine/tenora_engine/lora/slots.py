"""Slots: the bounded places from which a step can use an adapter. Pure: no torch; the time is passed in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class Slot:
    index: int
    generation: int = 0  # grows at every change of content, so that a stale reference can be told
    digest: str | None = None
    pins: int = 0  # running sequences that use it
    last_used: float = 0.0


class SlotTable:
    """Adapters by digest in a fixed number of slots; the least recently used unpinned one makes room."""

    def __init__(self, num_slots: int) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        self._num_unpinned = num_slots
        self._by_digest: dict[str, Slot] = {}

    def find(self, digest: str) -> Slot | None:
        return self._by_digest.get(digest)

    def num_short(self, digests: Collection[str]) -> int:
        """Slots that are missing for all of `digests` to have one at once, evicting none of them and none that is
        pinned. Not above 0: `place` them."""
        own = [self._by_digest[digest] for digest in digests if digest in self._by_digest]
        num_candidates = self._num_unpinned - sum(slot.pins == 0 for slot in own)
        return len(digests) - len(own) - num_candidates

    def fewest_pins(self, count: int, keep: Collection[str]) -> list[str]:
        """The `count` pinned adapters that are used least, none of `keep`. The same ones while only their own pins
        change."""
        pinned = [slot for slot in self.slots if slot.pins > 0 and slot.digest not in keep]
        pinned.sort(key=lambda slot: slot.pins)  # stable: by index among equals
        return [slot.digest for slot in pinned[:count] if slot.digest is not None]

    def place(self, digest: str, keep: Collection[str] = ()) -> Slot:
        """Give `digest` a slot, evicting neither a pinned adapter nor one of `keep`. Ask `num_short` first."""
        assert digest not in self._by_digest
        candidates = [slot for slot in self.slots if slot.pins == 0 and slot.digest not in keep]
        assert candidates, "no slot can be evicted"
        slot = min(candidates, key=lambda slot: (slot.digest is not None, slot.last_used))
        if slot.digest is not None:
            del self._by_digest[slot.digest]
        slot.digest = digest
        slot.generation += 1
        self._by_digest[digest] = slot
        return slot

    def drop(self, digest: str) -> None:
        """Empty the slot of `digest`, if it has one. It must not be pinned."""
        slot = self._by_digest.pop(digest, None)
        if slot is not None:
            assert slot.pins == 0
            slot.digest = None
            slot.generation += 1

    def pin(self, digest: str, now: float) -> None:
        slot = self._by_digest[digest]
        self._num_unpinned -= slot.pins == 0
        slot.pins += 1
        slot.last_used = now

    def unpin(self, digest: str, now: float) -> None:
        slot = self._by_digest[digest]
        assert slot.pins > 0
        slot.pins -= 1
        self._num_unpinned += slot.pins == 0
        slot.last_used = now
