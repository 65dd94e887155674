"""The scheduler's policy with lists: no torch, no model. A step's result is made up, its bookkeeping is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, RequestKey, Sequence, SequenceState
from tenora_engine.scheduler import Limits, Pin, Plan, Scheduler
from tenora_engine.wire import AdapterUse, Sampling

BLOCK_SIZE = 4


@dataclass
class ScriptedAdapters:
    """Adapters that are loaded when a test says so, with a number of slots; counts its pins."""

    num_slots: int = 2
    loading: set[str] = field(default_factory=set)
    pins: Counter[str] = field(default_factory=Counter)
    slots: list[str] = field(default_factory=list)

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool) -> Pin:
        digests = [use.digest for use in uses]
        if self.loading.intersection(digests):
            return Pin.LOADING
        missing = [digest for digest in digests if digest not in self.slots]
        kept = [slot for slot in self.slots if self.pins[slot] or slot in digests]
        if missing and (not may_place or len(kept) + len(missing) > self.num_slots):
            return Pin.NO_SLOT
        if missing:
            self.slots = kept + missing
        self.pins.update(digests)
        return Pin.PINNED

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None:
        for use in uses:
            assert self.pins[use.digest] > 0
            self.pins[use.digest] -= 1


def make_request(name: str, prompt: Many[int], *, max_tokens: int = 8, n: int = 1, adapters: Many[str] = ()) -> Request:
    request = Request(
        key=RequestKey(b"gateway", name),
        tenant="tenant",
        prompt=list(prompt),
        sampling=Sampling(max_tokens=max_tokens, n=n, seed=0),
        adapters=tuple(map(AdapterUse, adapters)),
        cache_root="/".join(adapters).encode(),
        stop_token_ids=frozenset(),
        max_new_tokens=max_tokens,
    )
    request.sequences = [Sequence(request, choice, list(prompt)) for choice in range(n)]
    return request


def make_scheduler(
    *, blocks: int = 64, sequences: int = 8, tokens: int = 16, adapters: ScriptedAdapters | None = None
) -> Scheduler:
    cache = PrefixCache(blocks, BLOCK_SIZE)
    return Scheduler(Limits(sequences, tokens), cache, adapters or ScriptedAdapters())


def run(scheduler: Scheduler) -> Plan:
    """One step: every planned chunk is computed, every sampled token is the sequence's length."""
    plan = scheduler.schedule(now=0.0)
    for chunk in plan.chunks:
        scheduler.commit(chunk, [len(chunk.sequence.tokens)] if chunk.samples else [])
        if chunk.sequence.finish_reason is not None:
            scheduler.finish(chunk.sequence)
    scheduler.retire(plan)
    return plan


def lengths(plan: Plan) -> dict[str, int]:
    return {chunk.sequence.request.key.request_id: chunk.length for chunk in plan.chunks}


def run_all(scheduler: Scheduler, limit: int = 10_000) -> int:
    steps = 0
    while scheduler.has_sequences:
        run(scheduler)
        steps += 1
        assert steps < limit, "no progress"
    return steps


def test_a_long_prompt_does_not_hold_up_running_streams():
    scheduler = make_scheduler(tokens=10)
    scheduler.add(make_request("stream", [1, 2, 3], max_tokens=20))
    run(scheduler)
    scheduler.add(make_request("long", range(100, 145), max_tokens=1))
    assert [lengths(run(scheduler)) for _ in range(5)] == [{"stream": 1, "long": 9}] * 5
    assert lengths(run(scheduler)) == {"stream": 1}


def test_the_budgets_hold():
    scheduler = make_scheduler(tokens=8, sequences=3)
    for index in range(6):
        scheduler.add(make_request(f"r{index}", range(index * 10, index * 10 + 5), max_tokens=3))
    while scheduler.has_sequences:
        plan = run(scheduler)
        assert sum(chunk.length for chunk in plan.chunks) <= 8
        assert len(scheduler.running) <= 3


def test_first_come_first_served_for_blocks():
    """A long prompt that waits for blocks is not passed by short ones for ever."""
    scheduler = make_scheduler(blocks=8)
    scheduler.add(make_request("holder", range(16), max_tokens=4))
    run(scheduler)
    scheduler.add(make_request("long", range(100, 120), max_tokens=1))
    scheduler.add(make_request("short", [1], max_tokens=1))
    assert lengths(run(scheduler)) == {"holder": 1}
    while scheduler.running:
        run(scheduler)
    assert set(lengths(run(scheduler))) >= {"long"}


def test_a_request_that_waits_for_its_adapter_lets_others_pass():
    adapters = ScriptedAdapters(loading={"a"})
    scheduler = make_scheduler(adapters=adapters)
    scheduler.add(make_request("waits", [1, 2], adapters=("a",)))
    scheduler.add(make_request("passes", [1, 2]))
    assert lengths(run(scheduler)) == {"passes": 2}
    adapters.loading.clear()
    assert lengths(run(scheduler)) == {"passes": 1, "waits": 2}


def test_free_slots_go_to_who_waited_first():
    """One that needs two slots is not passed for ever by those that need one; who needs no new slot may pass."""
    scheduler = make_scheduler(adapters=ScriptedAdapters(num_slots=2))
    scheduler.add(make_request("a1", [1], adapters=("a",), max_tokens=3))
    run(scheduler)
    scheduler.add(make_request("two", [1], adapters=("b", "c"), max_tokens=2))
    scheduler.add(make_request("a2", [1], adapters=("a",), max_tokens=1))
    scheduler.add(make_request("d", [1], adapters=("d",), max_tokens=1))
    assert lengths(run(scheduler)) == {"a1": 1, "a2": 1}
    order: list[str] = []
    while scheduler.has_sequences:
        order += [name for name in lengths(run(scheduler)) if name not in order]
    assert order == ["a1", "two", "d"]


def test_the_youngest_is_preempted_and_comes_back_first():
    scheduler = make_scheduler(blocks=5)
    old, young = make_request("old", range(7), max_tokens=10), make_request("young", range(50, 57), max_tokens=4)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.num_preemptions:
        run(scheduler)
    assert [s.state for s in (*old.sequences, *young.sequences)] == [SequenceState.RUNNING, SequenceState.WAITING]
    assert scheduler.waiting[0] is young.sequences[0]
    assert young.sequences[0].blocks == []
    run_all(scheduler)
    assert scheduler.cache.pool.num_free == 5


def test_choices_share_the_blocks_of_the_prompt():
    scheduler = make_scheduler(tokens=32)
    request = make_request("n", range(9), n=3, max_tokens=4)
    scheduler.add(request)
    assert lengths(run(scheduler)) == {"n": 9}
    assert [chunk.length for chunk in run(scheduler).chunks] == [1, 1, 1]  # the other two compute the last token only
    first, second, third = request.sequences
    assert first.blocks[:2] == second.blocks[:2] == third.blocks[:2]
    assert len({sequence.blocks[2] for sequence in request.sequences}) == 3


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)])
def test_the_last_token_is_always_computed(length: int, hit: int):
    """CACHE-06, with the exact numbers: floor((length - 1) / block) blocks are found the second time."""
    scheduler = make_scheduler()
    for attempt, cached in (("cold", 0), ("warm", hit)):
        request = make_request(attempt, range(length), max_tokens=1)
        scheduler.add(request)
        run_all(scheduler)
        assert request.cached_tokens == cached


class SchedulerMachine(RuleBasedStateMachine):
    """Any interleaving of arrivals, steps and aborts, in a pool too small for all: everything ends, nothing leaks."""

    BLOCKS = 10

    def __init__(self) -> None:
        super().__init__()
        self.adapters = ScriptedAdapters()
        self.scheduler = make_scheduler(blocks=self.BLOCKS, sequences=4, tokens=7, adapters=self.adapters)
        self.requests: list[Request] = []
        self.count = 0

    @rule(
        length=st.integers(1, 20),
        same_prefix=st.booleans(),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        adapters=st.sampled_from([(), ("a",), ("b",), ("c",), ("a", "b")]),
    )
    def arrive(self, length: int, same_prefix: bool, max_tokens: int, n: int, adapters: tuple[str, ...]) -> None:
        self.count += 1
        first = 0 if same_prefix else self.count * 100
        request = make_request(
            f"r{self.count}", range(first, first + length), max_tokens=max_tokens, n=n, adapters=adapters
        )
        self.requests.append(request)
        self.scheduler.add(request)

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            plan = run(self.scheduler)
            assert sum(chunk.length for chunk in plan.chunks) <= 7
            planned = [chunk.sequence for chunk in plan.chunks]
            assert len(set(map(id, planned))) == len(planned)

    @rule(index=st.integers(0, 100))
    def abort(self, index: int) -> None:
        if self.requests:
            for sequence in self.requests[index % len(self.requests)].sequences:
                self.scheduler.finish(sequence)

    @rule(loading=st.sets(st.sampled_from("abc")))
    def load(self, loading: set[str]) -> None:
        self.adapters.loading = loading - set(self.adapters.slots)

    @invariant()
    def blocks_and_pins_are_those_of_running_sequences(self) -> None:
        held: Counter[int] = Counter()
        pins: Counter[str] = Counter()
        for sequence in self.scheduler.running:
            held.update(sequence.blocks)
            pins.update(use.digest for use in sequence.request.adapters)
            assert len(sequence.blocks) * BLOCK_SIZE >= sequence.num_computed
        assert self.scheduler.cache.pool.num_free == self.BLOCKS - len(held)
        assert +self.adapters.pins == pins

    def teardown(self) -> None:
        self.adapters.loading = set()
        run_all(self.scheduler)
        assert self.scheduler.cache.pool.num_free == self.BLOCKS
        for request in self.requests:
            for sequence in request.sequences:
                # What was generated is a function of the length alone: neither lost nor doubled by preemption.
                assert sequence.state is SequenceState.FINISHED
                generated = sequence.tokens[len(request.prompt) :]
                assert generated == list(range(len(request.prompt), len(sequence.tokens)))
                if sequence.finish_reason is not None:
                    assert sequence.num_generated == request.max_new_tokens


SchedulerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
