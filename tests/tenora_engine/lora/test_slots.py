"""The slot table against a naive model: pinned adapters stay, those least worth make room, in slots and in bytes."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random
from typing import ClassVar

import pytest
from interleavings import counts, interleave, machine

from tenora_engine.lora.slots import SlotTable

NUM_SLOTS, MAX_BYTES = 3, 10
SIZES = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 7}
WANTED = ({"a"}, {"e"}, {"b", "d"}, {"a", "c", "d"})


class SlotInterleaving:
    RULES: ClassVar = {"use": 4, "unpin": 4, "drop": 1}

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.worth = dict(zip(dice.sample(list(SIZES), len(SIZES)), range(len(SIZES)), strict=True))
        self.table = SlotTable(NUM_SLOTS, lambda digest: self.worth[digest], MAX_BYTES)
        self.pins: Counter[str] = Counter()
        self.placed: set[str] = set()
        self.generations: dict[int, int] = dict.fromkeys(range(NUM_SLOTS), 0)

    def use(self) -> None:
        """A request with some adapters starts, if it can."""
        digests = set(self.dice.sample(list(SIZES), self.dice.randint(1, 4)))
        keep = set(self.dice.sample(list(SIZES), self.dice.randint(0, 2)))
        sizes = {digest: SIZES[digest] for digest in digests}
        staying = {digest for digest in self.placed if self.pins[digest] or digest in keep}
        can = fits(digests | staying)
        assert self.table.has_room(sizes, keep) == can
        if not can:
            return
        evicted = self.table.to_evict(sizes, keep)
        idle = sorted(self.placed - staying - digests, key=lambda digest: self.worth[digest])
        expected = next(n for n in range(len(idle) + 1) if fits((self.placed | digests) - set(idle[:n])))
        assert evicted == idle[:expected]
        for digest in evicted:
            self.table.drop(digest)
            self.placed.discard(digest)
        for digest in digests:
            if digest not in self.placed:
                slot = self.table.place(digest, SIZES[digest])
                assert slot.generation > self.generations[slot.index]
                self.placed.add(digest)
            self.table.pin(digest)
            self.pins[digest] += 1
        self.note_generations()

    def unpin(self) -> None:
        pinned = sorted(+self.pins)
        if pinned:
            digest = self.dice.choice(pinned)
            self.table.unpin(digest)
            self.pins[digest] -= 1

    def drop(self) -> None:
        digest = self.dice.choice(list(SIZES))
        if not self.pins[digest]:
            self.table.drop(digest)
            self.placed.discard(digest)
            self.note_generations()

    def note_generations(self) -> None:
        self.generations = {slot.index: slot.generation for slot in self.table.slots}

    def check(self) -> None:
        assert {slot.digest for slot in self.table.slots if slot.digest is not None} == self.placed
        assert self.table.num_bytes == sum(SIZES[digest] for digest in self.placed)
        assert fits(self.placed)
        for digest in self.placed:
            slot = self.table.find(digest)
            assert slot is not None
            assert (slot.digest, slot.pins) == (digest, self.pins[digest])
        for wanted in WANTED:
            self.check_victims(wanted)

    def check_victims(self, wanted: set[str]) -> None:
        victims = self.table.victims({digest: SIZES[digest] for digest in wanted})
        pinned = set(+self.pins)
        assert pinned - wanted >= set(victims)
        if fits(wanted):
            assert fits(wanted | (pinned - set(victims)))
        num_pins = sorted(self.pins[digest] for digest in pinned - wanted)
        assert [self.pins[digest] for digest in victims] == num_pins[: len(victims)]
        if victims:
            assert not fits(wanted | (pinned - set(victims[:-1])))

    def end(self) -> None:
        while +self.pins:
            self.unpin()
        for digests in combinations(SIZES, 2):
            assert self.table.has_room({digest: SIZES[digest] for digest in digests}) == fits(set(digests))


def fits(digests: set[str]) -> bool:
    return len(digests) <= NUM_SLOTS and sum(SIZES[digest] for digest in digests) <= MAX_BYTES


@counts(few=500)
@pytest.mark.timeout(3600)
def test_any_interleaving(first: int, count: int):
    interleave(SlotInterleaving, first, count)


TestSlotMachine = machine(SlotInterleaving, SlotInterleaving.RULES, max_examples=20)
