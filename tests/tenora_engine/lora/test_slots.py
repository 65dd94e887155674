"""The slot table against a naive model: pinned adapters stay, the least recently used one makes room."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenora_engine.lora.slots import SlotTable

NUM_SLOTS = 3
DIGESTS = st.sampled_from("abcde")


class SlotMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(NUM_SLOTS)
        self.now = 0.0
        self.pins: Counter[str] = Counter()
        self.used: dict[str, float] = {}  # adapters in slots: when last used
        self.generations: dict[int, int] = dict.fromkeys(range(NUM_SLOTS), 0)

    @rule(digests=st.sets(DIGESTS, min_size=1, max_size=4))
    def use(self, digests: set[str]) -> None:
        """A request with these adapters starts, if it can."""
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

    @rule(digest=DIGESTS)
    def unpin(self, digest: str) -> None:
        if self.pins[digest]:
            self.now += 1
            self.table.unpin(digest, self.now)
            self.pins[digest] -= 1
            self.used[digest] = self.now

    @rule(digest=DIGESTS)
    def drop(self, digest: str) -> None:
        if not self.pins[digest]:
            slot = self.table.find(digest)
            self.table.drop(digest)
            self.used.pop(digest, None)
            if slot is not None:
                self.generations[slot.index] = slot.generation

    @invariant()
    def the_same_adapters_lie_in_slots(self) -> None:
        assert {slot.digest for slot in self.table.slots if slot.digest is not None} == self.used.keys()
        for digest in self.used:
            slot = self.table.find(digest)
            assert slot is not None
            assert slot.digest == digest
            assert slot.pins == self.pins[digest]


SlotMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlotMachine = SlotMachine.TestCase
