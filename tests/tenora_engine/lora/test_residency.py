"""The adapters' states in any interleaving of requests and the loader's ends, against what must always hold.

Which transitions are legal, `Residency._move` asserts. Here: memory is never over its bounds, a pinned adapter lies in
its slot until its last pin goes, each job ends once, and every request gets its adapters in the end.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from interleavings import counts, interleave, machine
from slots_double import Slots

from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.loader import Event, Failed, Fetched, Placed, Read
from tenora_engine.lora.residency import Residency, Room, State
from tenora_engine.scheduler import Pin
from tenora_engine.wire import AdapterUse, Tier

SIZES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 6, "huge": 50}
ROOM = Room(num_slots=2, num_on_host=4, host_bytes=14, device_bytes=9)
Uses = tuple[AdapterUse, ...]


class Jobs:
    """A loader whose jobs end when a test says so."""

    def __init__(self) -> None:
        self.open: list[Event] = []
        self.done: list[Event] = []

    def fetch(self, digest: str) -> None:
        self._begin(Fetched(digest, SIZES[digest]))

    def read(self, digest: str) -> None:
        weights: Any = SimpleNamespace(num_bytes=SIZES[digest], name=digest)
        self._begin(Read(digest, weights, 1.0))

    def place(self, digest: str, weights: Any) -> None:
        assert weights.name == digest
        self._begin(Placed(digest, digest))

    def poll(self) -> list[Event]:
        done, self.done = self.done, []
        return done

    def _begin(self, event: Event) -> None:
        assert all(other.digest != event.digest for other in self.open), "two jobs at once"
        self.open.append(event)

    def end(self, event: Event, error: AdapterUnavailable | None = None) -> None:
        self.open.remove(event)
        self.done.append(event if error is None else Failed(event.digest, error))


class ResidencyInterleaving:
    RULES: ClassVar = {"arrive": 4, "turn": 6, "insist": 1, "leave": 4, "end_job": 8, "fail_job": 1, "set_aside": 1}

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 0.0
        self.jobs, self.slots = Jobs(), Slots()
        self.residency = Residency(self.slots, ROOM, self.jobs, lambda: self.now)
        self.waiting: list[Uses] = []
        self.running: list[Uses] = []

    def arrive(self) -> None:
        digests = self.dice.sample(list(SIZES), self.dice.choice((1, 1, 1, 2)))
        uses = tuple(map(AdapterUse, digests))
        try:
            self.residency.want(uses)
        except AdapterUnavailable:
            return
        self.waiting.append(uses)

    def turn(self, *, insist: bool = False) -> None:
        self.now += 1
        if self.waiting:
            uses = self.dice.choice(self.waiting)
            if self.residency.pin(uses, may_place=self.dice.random() < 0.8 or insist, insist=insist) is Pin.PINNED:
                self.waiting.remove(uses)
                self.running.append(uses)

    def insist(self) -> None:
        self.turn(insist=True)

    def leave(self) -> None:
        """A request ends, or is aborted while it waits."""
        if self.running and self.dice.random() < 0.8:
            uses = self.running.pop(self.dice.randrange(len(self.running)))
            if self.dice.random() < 0.5:  # its step is retired later
                self.residency.unwant(uses)
                self.residency.unpin(uses)
            else:
                self.residency.unpin(uses)
                self.residency.unwant(uses)
        elif self.waiting:
            self.residency.unwant(self.waiting.pop(self.dice.randrange(len(self.waiting))))

    def end_job(self) -> None:
        if self.jobs.open:
            self.jobs.end(self.dice.choice(self.jobs.open))
        self.collect()

    def fail_job(self) -> None:
        if self.jobs.open:
            self.jobs.end(self.dice.choice(self.jobs.open), AdapterUnavailable("injected"))
        self.collect()

    def set_aside(self) -> None:
        if self.dice.random() < 0.3:
            digest = self.dice.choice(list(SIZES))
            self.residency.quarantine(digest)
            self.fail(frozenset({digest}))

    def collect(self) -> None:
        if self.dice.random() < 0.6:
            for failure in self.residency.collect():
                self.fail(failure.digests)

    def fail(self, digests: frozenset[str]) -> None:
        """As the core does: those that use all of these end, also while they run."""
        for requests, pinned in ((self.waiting, False), (self.running, True)):
            for uses in [uses for uses in requests if digests <= {use.digest for use in uses}]:
                requests.remove(uses)
                self.residency.unwant(uses)
                if pinned:
                    self.residency.unpin(uses)

    def check(self) -> None:
        residency = self.residency
        on_host = [d for d in SIZES if residency.state_of(d) in set(State) - {State.FETCHING, State.STORED}]
        assert len(on_host) <= ROOM.num_on_host
        assert residency.host_bytes == sum(SIZES[digest] for digest in on_host) <= ROOM.host_bytes
        assert residency.device_bytes <= ROOM.device_bytes
        placed = [digest for digest in SIZES if residency.tier_of(digest) is Tier.DEVICE]
        assert set(placed) <= set(self.slots.content.values())
        assert sum(SIZES[digest] for digest in self.slots.content.values()) <= ROOM.device_bytes
        for uses in self.running:
            for use in uses:
                assert self.slots.content[residency.slot_of(use.digest)] == use.digest
        busy = {event.digest for event in (*self.jobs.open, *self.jobs.done)}
        assert busy == {d for d in SIZES if residency.state_of(d) in (State.FETCHING, State.READING, State.LOADING)}

    def end(self) -> None:
        """Requests end one after the other; each of those that wait runs, once the loader has nothing more to do."""
        for _ in range(300):
            while self.jobs.open:
                self.jobs.end(self.jobs.open[0])
            for failure in self.residency.collect():
                self.fail(failure.digests)
            self.check()
            if not self.waiting and not self.running:
                break
            uses = self.waiting[0] if self.waiting else self.running[0]
            if self.waiting and self.residency.pin(uses, may_place=True, insist=True) is Pin.PINNED:
                self.running.append(self.waiting.pop(0))
            elif self.running and not self.jobs.open:
                uses = self.running.pop(0)
                self.residency.unpin(uses)
                self.residency.unwant(uses)
        assert not self.waiting, "requests whose adapters never come"
        assert self.residency.num_pins == 0
        assert not +self.residency._wanted
        assert not self.residency._combined


@counts(few=1_000)
@pytest.mark.timeout(3600)
def test_any_interleaving(first: int, count: int):
    """ADP-17; S-LoRA's and vLLM's classes of bugs: an adapter exchanged under a pin, one that is never evicted."""
    interleave(ResidencyInterleaving, first, count)


TestResidencyMachine = machine(ResidencyInterleaving, ResidencyInterleaving.RULES, max_examples=20)


def through(residency: Residency, jobs: Jobs, uses: Uses, states: list[State]) -> None:
    """Bring a request to its pin, one job at a time, noting the states on the way."""
    while residency.pin(uses, may_place=True) is Pin.LOADING:
        states.append(residency.state_of(uses[0].digest) or pytest.fail("absent"))
        jobs.end(jobs.open[0])
        assert residency.collect() == []
    states.append(residency.state_of(uses[0].digest) or pytest.fail("absent"))


def test_the_way_of_one_adapter():
    jobs, slots = Jobs(), Slots()
    residency = Residency(slots, ROOM, jobs, lambda: 0.0)
    uses, states = (AdapterUse("a"),), []
    residency.want(uses)
    through(residency, jobs, uses, states)
    assert states == [State.FETCHING, State.READING, State.LOADING, State.RESIDENT]
    residency.quarantine("a")
    assert residency.state_of("a") is State.EVICTING
    residency.unpin(uses)
    assert residency.state_of("a") is None
    assert slots.content == {}


def test_arrival_is_enough_to_be_read_ahead():
    """The gateway's choice of an engine is the prefetch: nobody's turn has to come."""
    jobs = Jobs()
    residency = Residency(Slots(), ROOM, jobs, lambda: 0.0)
    residency.want((AdapterUse("a"),))
    for state in (State.FETCHING, State.READING):
        assert residency.state_of("a") is state
        jobs.end(jobs.open[0])
        residency.collect()
    assert residency.state_of("a") is State.HOST


def test_what_was_read_ahead_gives_way_to_one_whose_turn_it_is():
    jobs = Jobs()
    residency = Residency(Slots(), Room(2, 2), jobs, lambda: 0.0)
    for digest in "abc":
        residency.want((AdapterUse(digest),))
    while jobs.open:
        jobs.end(jobs.open[0])
        residency.collect()
    assert [residency.state_of(digest) for digest in "abc"] == [State.HOST, State.HOST, State.STORED]
    assert residency.pin((AdapterUse("c"),), may_place=True) is Pin.LOADING
    assert residency.state_of("c") is State.READING


@pytest.mark.parametrize("digests", [("huge",), ("d", "e")])
def test_what_can_never_be_in_memory_is_told_at_once(digests: tuple[str, ...]):
    """By adapter, or all of one request: no request waits for ever."""
    jobs = Jobs()
    residency = Residency(Slots(), ROOM, jobs, lambda: 0.0)
    residency.want(map(AdapterUse, digests))
    failures = []
    while jobs.open:
        jobs.end(jobs.open[0])
        failures += residency.collect()
    assert {failure.digests for failure in failures} == {frozenset(digests)}
    with pytest.raises(AdapterUnavailable, match="MiB for adapters"):
        residency.want(map(AdapterUse, digests))
