"""The engine reads nothing that it has not written: its tests over memory that holds NaN until then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import poison
import pytest
from engine_under_test import TINY_VOCAB, EngineUnderTest, prompt

from tenora_engine import executor, layout
from tenora_engine.kernels.attention import Span
from tenora_engine.wire import FailCode

HERE = Path(__file__).parent
SUITE = (
    "test_core.py",
    "test_matrix.py",
    "test_oracle.py",
    "test_async.py",
    "test_cache.py",
    "test_isolation.py",
    "test_speculation.py",
    "test_guesses_under_grammars.py",
    "test_kv_quantised.py",
)
# glibc fills what it gives out with the complement of this: a number of 1e38 in fp32 and bf16, for the C++ library.
MALLOC = {"MALLOC_PERTURB_": "1"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_engines_suite_over_poisoned_memory() -> None:
    files = [str(HERE / name) for name in SUITE]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long and not soak",
        *files,
    ]
    ran = subprocess.run(
        command, env=os.environ | MALLOC | {"TENORA_TEST_POISON": "1"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


@pytest.fixture(params=["native", "torch"])
def poisoned(request: pytest.FixtureRequest, make_engine: Callable[..., EngineUnderTest]) -> Iterator[EngineUnderTest]:
    with poison.poisoned_memory():
        engine = make_engine(cpu_kernels=request.param)
        if not poison.WANTED:
            poison.PoisonedBlocks(engine.engine)
        yield engine


def test_a_sound_engine_does_not_notice(make_engine: Callable[..., EngineUnderTest], poisoned: EngineUnderTest) -> None:
    for seed in range(3):  # the second and third find blocks of the first, and take free ones
        want = make_engine().ask(prompt(37, seed % 2))
        assert poisoned.ask(prompt(37, seed % 2)).text == want.text


def test_a_read_past_the_end_is_seen(poisoned: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: one token more than there are."""

    def too_long(begin: int, end: int, context: int, blocks: list[int]) -> Span:
        return Span(begin, end, context + 1, blocks)

    monkeypatch.setattr(layout, "Span", too_long)
    assert poisoned.ask(prompt(10), max_tokens=3).fail_code is FailCode.NUMERICAL


def test_a_read_of_what_is_free_is_seen(poisoned: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: tables name a block that was given up. A block of the cache's would be none of these."""
    poisoned.ask(prompt(3, 1), max_tokens=1)  # less than a block, which nobody finds
    given_up = next(reversed(poisoned.cache.pool._free))
    request_id = poisoned.submit(prompt(20), max_tokens=8)
    poisoned.step()
    poisoned.step()
    assert poisoned.cache.pool.is_free(given_up)

    def astray(parts: Sequence[layout.Part], block_size: int) -> layout.Layout:
        for part in parts:
            part.blocks[0] = given_up
        return layout.lay_out(parts, block_size)

    monkeypatch.setattr(executor, "lay_out", astray)
    assert poisoned.finish()[request_id].fail_code is FailCode.NUMERICAL


def test_a_row_that_was_not_computed_is_seen(poisoned: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: what a layer should have written is as the allocator gave it."""
    decoder = poisoned.engine.executor._runner._decoder
    assert poisoned.ask(prompt(10), max_tokens=3).failed is None
    idle: Any = lambda x: x.new_empty(len(x), TINY_VOCAB)  # noqa: E731
    monkeypatch.setattr(decoder, "weights", replace(decoder.weights, lm_head=idle))
    assert poisoned.ask(prompt(10), max_tokens=3).fail_code is FailCode.NUMERICAL
