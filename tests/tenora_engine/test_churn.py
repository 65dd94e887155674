"""More adapters than there is room for, asked for all the time: everybody gets the answer of the adapter that it named,
and memory, files and threads are in the end what they were."""

from __future__ import annotations

import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from engine_under_test import EngineUnderTest, World, prompt, random_adapter, store_adapter
from safetensors.torch import load_file, save_file

from tenora_adapters.blobs import FolderStore
from tenora_adapters.manifest import WEIGHTS_FILE
from tenora_engine.lora.residency import State

MINUTES = float(os.environ.get("TENORA_SOAK_MINUTES", "10"))
NUM_STREAMS = 16
ROOM = {"adapter_slots": 8, "host_adapters": 8, "max_sequences": 16, "max_batch_tokens": 64}
Make = Callable[..., EngineUnderTest]


@dataclass
class Churn:
    """NUM_STREAMS requests at any time, each with an adapter drawn from all."""

    engine: EngineUnderTest
    expected: Callable[[str], list[int]]
    digests: list[str]
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    asked: dict[str, str] = field(default_factory=dict)
    gaps: array[float] = field(default_factory=lambda: array("f"))  # seconds between two tokens of a stream
    num_right: int = 0
    _heard: dict[str, tuple[int, float]] = field(default_factory=dict)

    def step(self) -> None:
        while len(self.asked) < NUM_STREAMS:
            digest = self.dice.choice(self.digests)
            self.asked[self.engine.submit(prompt(12), [digest], max_tokens=24, tenant=digest[:1])] = digest
        self.engine.step_when_ready()
        self.listen()

    def listen(self) -> None:
        now = time.monotonic()
        for request_id, digest in list(self.asked.items()):
            answer = self.engine.answers[request_id]
            num_tokens = len(answer.tokens[0])
            before, since = self._heard.get(request_id, (0, now))
            if num_tokens > before:
                if before:
                    self.gaps.append(now - since)
                self._heard[request_id] = num_tokens, now
            if answer.num_terminal:
                assert answer.text == self.expected(digest), digest
                self.num_right += 1
                del self.asked[request_id], self.engine.answers[request_id]
                self._heard.pop(request_id, None)

    def finish(self) -> None:
        self.engine.finish()
        self.listen()
        assert not self.asked
        self.engine.assert_at_rest()


@pytest.fixture
def make_churn(make_engine: Make, world: World, tmp_path: Path) -> Callable[[int], Churn]:
    """Over so many adapters, fetched through a disk cache that holds a quarter of them."""

    def make(num_adapters: int) -> Churn:
        store = FolderStore(tmp_path / "blobs")
        folder = random_adapter(world.model, tmp_path / "adapter", rank=4, seed=1)
        tensors = load_file(folder / WEIGHTS_FILE)
        digests = []
        for number in range(num_adapters):  # the same one, with a sign of its own for each tensor
            dice = random.Random(number)
            signed = {name: tensor * dice.choice((-1.0, 1.0)) for name, tensor in sorted(tensors.items())}
            save_file(signed, folder / WEIGHTS_FILE)
            digests.append(store_adapter(store, folder, world.base))
        size_mb = max(1, num_adapters * (folder / WEIGHTS_FILE).stat().st_size // 4 >> 20)
        with_room = make_engine(store=store, adapter_slots=num_adapters, host_adapters=num_adapters)
        alone: dict[str, list[int]] = {}

        def expected(digest: str) -> list[int]:
            if digest not in alone:
                alone[digest] = with_room.ask(prompt(12), [digest], max_tokens=24).text
            return alone[digest]

        for digest in digests:
            expected(digest)
        engine = make_engine(store=store, adapter_cache=tmp_path / "cache", adapter_cache_mb=size_mb, **ROOM)
        return Churn(engine, expected, digests)

    return make


def test_churn(make_churn: Callable[[int], Churn]):
    """Thirty adapters through room for eight, 150 requests."""
    churn = make_churn(30)
    assert len({tuple(churn.expected(digest)) for digest in churn.digests}) > 25  # else a mix-up would not be seen
    while churn.num_right < 150:
        churn.step()
    churn.finish()
    residency = churn.engine.core.residency
    in_memory = [d for d in churn.digests if residency.state_of(d) not in (None, State.STORED, State.FETCHING)]
    assert len(in_memory) <= ROOM["host_adapters"]


@pytest.mark.soak
def test_churn_for_long(make_churn: Callable[[int], Churn], capsys: pytest.CaptureFixture[str]):
    """Two hundred adapters through room for eight, ten minutes (`TENORA_SOAK_MINUTES`). Prints the gaps of the streams
    beside those of the same streams while nothing is loaded."""
    churn = make_churn(200)
    everything, churn.digests = churn.digests, churn.digests[: ROOM["adapter_slots"]]
    run(churn, seconds=min(30.0, MINUTES * 6))
    quiet, churn.gaps = churn.gaps, array("f")
    churn.digests = everything
    run(churn, seconds=MINUTES * 12)
    process, threads = psutil.Process(), threading.active_count()
    before = process.memory_info().rss
    run(churn, seconds=MINUTES * 48)
    grown = (process.memory_info().rss - before) >> 20
    churn.finish()
    with capsys.disabled():
        print(
            f"\n{churn.num_right} answers right; p99 gap {percentile(churn.gaps):.1f} ms, without loading "
            f"{percentile(quiet):.1f} ms; {grown} MiB grown"
        )
    assert threading.active_count() <= threads
    assert grown < 64


def run(churn: Churn, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        churn.step()


def percentile(gaps: Sequence[float]) -> float:
    """The 99th, in ms."""
    return sorted(gaps)[len(gaps) * 99 // 100] * 1000
