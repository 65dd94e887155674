"""The slot table against a naive model: pinned adapters stay, the least recently used one makes room."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from interleavings import counts, interleave, machine

from tenora_engine.lora.slots import SlotTable

NUM_SLOTS = 3
DIGESTS = "abcde"


class SlotInterleaving:
    RULES: ClassVar = {"use": 4, "unpin": 4, "drop": 1}

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.table = SlotTable(NUM_SLOTS)
        self.now = 0.0
        self.pins: Counter[str] = Counter()
        self.used: dict[str, float] = {}  # adapters in slots: when last used
        self.generations: dict[int, int] = dict.fromkeys(range(NUM_SLOTS), 0)

    def use(self) -> None:
        """A request with some adapters starts, if it can."""
        digests = set(self.dice.sample(DIGESTS, self.dice.randint(1, 4)))
        self.now += 1
        missing = sorted(digests - self.used.keys())
        evictable = sorted((self.used[d], d) for d in self.used if not self.pins[d] and d not in digests)
        room = NUM_SLOTS - len(self.used) + len(evictable)
        assert self.table.num_short(digests) == len(missing) - room
        if len(missing) > room:
            return
        for digest in missing:
            if len(self.used) == NUM_SLOTS:
                del self.used[evictable.pop(0)[1]]
            slot = self.table.place(digest, keep=digests)
            assert slot.generation > self.generations[slot.index]
            self.generations[slot.index] = slot.generation
            self.used[digest] = 0.0
        for digest in digests:
            self.table.pin(digest, self.now)
            self.pins[digest] += 1
            self.used[digest] = self.now

    def unpin(self) -> None:
        pinned = sorted(+self.pins)
        if pinned:
            digest = self.dice.choice(pinned)
            self.now += 1
            self.table.unpin(digest, self.now)
            self.pins[digest] -= 1
            self.used[digest] = self.now

    def drop(self) -> None:
        digest = self.dice.choice(DIGESTS)
        if not self.pins[digest]:
            slot = self.table.find(digest)
            self.table.drop(digest)
            self.used.pop(digest, None)
            if slot is not None:
                self.generations[slot.index] = slot.generation

    def check(self) -> None:
        assert {slot.digest for slot in self.table.slots if slot.digest is not None} == self.used.keys()
        for digest in self.used:
            slot = self.table.find(digest)
            assert slot is not None
            assert slot.digest == digest
            assert slot.pins == self.pins[digest]
        keep = self.dice.sample(DIGESTS, 1)
        least = self.table.fewest_pins(2, keep)
        counts_of = sorted(self.pins[digest] for digest in +self.pins if digest not in keep)
        assert [self.pins[digest] for digest in least] == counts_of[:2]

    def end(self) -> None:
        while +self.pins:
            self.unpin()
        assert self.table.num_short([]) == -NUM_SLOTS


@counts()
@pytest.mark.timeout(3600)
def test_any_interleaving(first: int, count: int):
    interleave(SlotInterleaving, first, count)


TestSlotMachine = machine(SlotInterleaving, SlotInterleaving.RULES, max_examples=60)
