"""Slots: the bounded places from which a step can use an adapter, in bounded memory. Pure: no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Slot:
    index: int
    generation: int = 0  # grows at every change of content, so that a stale reference can be told
    digest: str | None = None
    num_bytes: int = 0
    pins: int = 0  # running sequences that use it


class SlotTable:
    """Adapters by digest in a fixed number of slots and bytes. Of those that nobody has pinned, the least worth make
    room."""

    def __init__(self, num_slots: int, worth: Callable[[str], float], max_bytes: float = inf) -> None:
        self.slots = [Slot(index) for index in range(num_slots)]
        self.max_bytes = max_bytes
        self._worth = worth
        self._by_digest: dict[str, Slot] = {}

    @property
    def num_bytes(self) -> int:
        return sum(slot.num_bytes for slot in self._by_digest.values())

    def find(self, digest: str) -> Slot | None:
        return self._by_digest.get(digest)

    def has_room(self, sizes: Mapping[str, int], keep: Collection[str] = ()) -> bool:
        """Whether all of `sizes` (bytes by digest) can have a slot at once, evicting none of them, none that is pinned
        and none of `keep`."""
        staying = [slot for slot in self._by_digest.values() if slot.pins or slot.digest in keep]
        return self._fit(sizes, staying)

    def victims(self, sizes: Mapping[str, int]) -> list[str]:
        """Pinned adapters, none of `sizes`, without which `has_room(sizes)`: those with the fewest pins, and the same
        ones while only their own pins change. All of them if that is not enough."""
        staying = sorted((slot for slot in self.slots if slot.pins), key=lambda slot: -slot.pins)
        chosen: list[str] = []
        for slot in reversed([slot for slot in staying if slot.digest not in sizes]):
            if self._fit(sizes, staying):
                break
            staying.remove(slot)
            assert slot.digest is not None
            chosen.append(slot.digest)
        return chosen

    def to_evict(self, sizes: Mapping[str, int], keep: Collection[str] = ()) -> list[str]:
        """Who has to go so that all of `sizes` fit: those least worth. Ask `has_room` first."""
        staying = [slot for slot in self._by_digest.values() if slot.digest not in sizes]
        idle = [slot for slot in staying if not slot.pins and slot.digest not in keep]
        chosen: list[str] = []
        for slot in sorted(idle, key=lambda slot: self._worth(slot.digest or "")):
            if self._fit(sizes, staying):
                break
            staying.remove(slot)
            assert slot.digest is not None
            chosen.append(slot.digest)
        assert self._fit(sizes, staying), "no slot can be evicted"
        return chosen

    def place(self, digest: str, num_bytes: int) -> Slot:
        """Give `digest` a free slot."""
        assert digest not in self._by_digest
        slot = next(slot for slot in self.slots if slot.digest is None)
        slot.digest, slot.num_bytes = digest, num_bytes
        slot.generation += 1
        self._by_digest[digest] = slot
        assert self.num_bytes <= self.max_bytes
        return slot

    def drop(self, digest: str) -> None:
        """Empty the slot of `digest`, if it has one. It must not be pinned."""
        slot = self._by_digest.pop(digest, None)
        if slot is not None:
            assert slot.pins == 0
            slot.digest, slot.num_bytes = None, 0
            slot.generation += 1

    def pin(self, digest: str) -> None:
        self._by_digest[digest].pins += 1

    def unpin(self, digest: str) -> None:
        slot = self._by_digest[digest]
        assert slot.pins > 0
        slot.pins -= 1

    def _fit(self, sizes: Mapping[str, int], staying: Iterable[Slot]) -> bool:
        others = [slot for slot in staying if slot.digest not in sizes]
        num_bytes = sum(sizes.values()) + sum(slot.num_bytes for slot in others)
        return len(sizes) + len(others) <= len(self.slots) and num_bytes <= self.max_bytes
