"""Launched steps in order: blocks moved before, tokens filled in, failures tried alone, and the rest fatal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tenora_engine.block_copies import BlockCopies
from tenora_engine.drawing import ChunkResult, Draw, wanted
from tenora_engine.executor import NOT_COMPUTED, Executor, Launch
from tenora_engine.kernels.kv import LayerKv, allocate_kv
from tenora_engine.layout import Layout
from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.runner import Computed
from tenora_engine.sampler import Sampled
from tenora_engine.scheduler import BlockCopy, Chunk, Plan, Swap
from tenora_engine.wire import Sampling

BLOCK = 4


class RunnerDouble:
    """Says the last token plus one, and notes what it computed."""

    def __init__(self) -> None:
        self.computed: list[list[int]] = []
        self.threads: set[str] = set()
        self.fails: Callable[[Layout], bool] = lambda layout: False
        self.fails_to_draw: Callable[[list[Draw]], bool] = lambda draws: False

    def forward(self, layout: Layout) -> Computed:
        self.threads.add(threading.current_thread().name)
        if self.fails(layout):
            raise RuntimeError("injected")
        self.computed.append(layout.tokens)
        return Computed(layout, torch.zeros(0), None)

    def draw(self, computed: Computed, draws: list[Draw]) -> list[ChunkResult]:
        if self.fails_to_draw(draws):
            raise RuntimeError("injected")
        assert {draw.part for draw in draws} <= {item.part for item in computed.layout.placed}
        return [
            ChunkResult(draw.part.chunk, [Sampled(draw.part.tokens[-1] + 1, None)] if draw.rows else [])
            for draw in draws
        ]


@pytest.fixture
def runner() -> RunnerDouble:
    return RunnerDouble()


@pytest.fixture
def cache() -> tuple[LayerKv, ...]:
    layers = allocate_kv(2, 6, BLOCK, 1, 2, torch.float32, torch.device("cpu"))
    for number, layer in enumerate(layers):
        for pages in layer.pages:
            pages.copy_(torch.arange(7.0).view(-1, 1, 1, 1).expand_as(pages) + 100 * number)
    return layers


@pytest.fixture
def executor(runner: Any, cache: tuple[LayerKv, ...]) -> Iterator[Executor]:
    made = Executor(runner, BlockCopies(cache, 3), BLOCK, lambda digest: 0, lambda: 0.0)
    yield made
    made.close()


def sequence_of(*tokens: int) -> Sequence:
    request = Request(RequestKey(b"", str(tokens[0])), "t", list(tokens), Sampling(), (), b"", frozenset(), 100)
    request.sequences = [Sequence(request, 0, list(tokens), blocks=[1, 2, 3])]
    return request.sequences[0]


def drawn(executor: Executor, launch: Launch, *sequences: Sequence) -> dict[int, int | None]:
    """By the sequence's first token: what was drawn for it, None if that failed."""
    parts = [part for part in launch.parts if part.chunk.sequence in sequences]
    executor.draw(launch, [wanted(part, 64) for part in parts])
    results = executor.take(launch).chunks
    return {r.chunk.sequence.tokens[0]: r.drawn[-1].token_id if r.drawn else None for r in results}


def decode(sequence: Sequence, end: int) -> Chunk:
    return Chunk(sequence, end - 1, 1, True, 0)


def test_a_token_that_is_not_known_yet_is_filled_in(executor: Executor, runner: RunnerDouble) -> None:
    """From the step before; what the core does to the sequence after the launch does not matter."""
    a, b = sequence_of(10, 11, 12), sequence_of(20, 21)
    first = executor.launch(Plan(1, (Chunk(a, 0, 3, True, 0), Chunk(b, 0, 2, True, 0))))
    executor.draw(first, [wanted(part, 64) for part in first.parts])
    second = executor.launch(Plan(2, (decode(a, 4), decode(b, 3))))
    assert [part.unknown for part in second.parts] == [0, 0]
    executor.take(first)
    for sequence in (a, b):
        sequence.append(99)
        sequence.blocks = []
    assert drawn(executor, second, a, b) == {10: 14, 20: 23}
    assert runner.computed == [[10, 11, 12, 20, 21], [13, 22]]
    assert runner.threads == {"executor_0"}


def test_a_step_that_fails_is_tried_chunk_by_chunk_before_the_next(executor: Executor, runner: RunnerDouble) -> None:
    """The next one, launched already, goes on from what came of that."""
    a, b, c = sequence_of(10), sequence_of(20), sequence_of(30)
    runner.fails = lambda layout: any(item.part.chunk.sequence is b for item in layout.placed)
    first = executor.launch(Plan(1, tuple(decode(sequence, 1) for sequence in (a, b, c))))
    executor.draw(first, [wanted(part, 64) for part in first.parts])
    second = executor.launch(Plan(2, (decode(a, 2), decode(c, 2))))
    failures = {result.chunk.sequence: result.failure for result in executor.take(first).chunks}
    assert failures == {a: None, b: NOT_COMPUTED, c: None}
    assert drawn(executor, second, a, c) == {10: 12, 30: 32}
    assert runner.computed == [[10], [30], [11, 31]]


def test_drawing_that_fails_is_tried_chunk_by_chunk(executor: Executor, runner: RunnerDouble) -> None:
    a, b = sequence_of(10), sequence_of(20)
    runner.fails_to_draw = lambda draws: any(draw.part.chunk.sequence is b for draw in draws)
    launch = executor.launch(Plan(1, (decode(a, 1), decode(b, 1))))
    assert drawn(executor, launch, a, b) == {10: 11, 20: None}


def test_nobody_draws_for_a_sequence_that_has_ended(executor: Executor, runner: RunnerDouble) -> None:
    """And what is computed for it in the next step is of no consequence to anybody."""
    a, b = sequence_of(10), sequence_of(20)
    first = executor.launch(Plan(1, (decode(a, 1), decode(b, 1))))
    executor.draw(first, [wanted(first.parts[0], 64)])
    second = executor.launch(Plan(2, (decode(a, 2), decode(b, 2))))
    assert [result.chunk.sequence for result in executor.take(first).chunks] == [a]
    assert drawn(executor, second, a) == {10: 12}


def values(layer: LayerKv, block: int) -> set[float]:
    return {value for pages in layer.pages for value in pages[block].flatten().tolist()}


def test_blocks_move_before_the_step_writes(executor: Executor, cache: tuple[LayerKv, ...]) -> None:
    """Out, then in, then from one to another; a plan may hold nothing else."""
    executor.draw(executor.launch(Plan(1, (), swap_out=(Swap(1, 3), Swap(2, 1)))), [])
    launch = executor.launch(
        Plan(2, (), swap_out=(Swap(4, 2),), swap_in=(Swap(4, 3), Swap(5, 2)), copies=(BlockCopy(4, 6),))
    )
    executor.draw(launch, [])
    assert executor.take(launch).chunks == []
    for number, layer in enumerate(cache):
        moved = [values(layer, block) for block in range(1, 7)]
        assert moved == [{value + 100.0 * number} for value in (1, 2, 3, 1, 4, 1)]


def test_blocks_move_once_though_the_step_is_tried_again(
    executor: Executor, runner: RunnerDouble, cache: tuple[LayerKv, ...]
) -> None:
    """A second time would take what the step has written since for what was there."""
    a = sequence_of(10)
    failures = iter([True])

    def write_and_fail(layout: Layout) -> bool:
        for layer in cache:
            layer.keys[1] = 55.0
        return next(failures, False)

    runner.fails = write_and_fail
    launch = executor.launch(Plan(1, (decode(a, 1),), copies=(BlockCopy(1, 2),)))
    assert drawn(executor, launch, a) == {10: 11}
    assert cache[0].keys[2].unique().tolist() == [1.0]


def test_blocks_that_cannot_be_moved_end_the_engine(executor: Executor) -> None:
    """Nobody knows any more whose values lie where."""
    launch = executor.launch(Plan(1, (decode(sequence_of(10), 1),), swap_in=(Swap(1, 99),)))
    executor.draw(launch, [wanted(part, 64) for part in launch.parts])
    with pytest.raises(IndexError):
        executor.take(launch)
