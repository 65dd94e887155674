"""Versions of one adapter beside each other, and one that is deleted under its requests, at each point of their way.

The engine knows versions by digest alone; which name they had is the gateway's business (`gateway/test_versions.py`).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import EngineUnderTest, World, prompt, random_adapter, store_adapter

from tenora_adapters.blobs import FolderStore
from tenora_engine.lora.residency import State
from tenora_engine.wire import FailCode

Make = Callable[..., EngineUnderTest]


def test_a_stream_goes_on_with_its_version(make_engine: Make, world: World):
    """ADP-16: 200 tokens of version 1, while version 2 arrives, is loaded and answers; each says what it says alone."""
    v1, v2 = (world.uses(name) for name in ("r8", "r4"))
    alone = {name: make_engine().ask(prompt(20), world.uses(name), max_tokens=200).text for name in ("r8", "r4")}
    engine = make_engine(adapter_slots=2, host_adapters=2)
    old = engine.submit(prompt(20), v1, max_tokens=200, ignore_eos=True)
    news = []
    while not engine.answers[old].num_terminal:
        if len(engine.answers[old].tokens[0]) % 40 == 20:
            news.append(engine.submit(prompt(20), v2, max_tokens=200, ignore_eos=True))
        engine.step_when_ready()
    answers = engine.finish()
    assert len(answers[old].text) == 200
    assert answers[old].text[: len(alone["r8"])] == alone["r8"]
    assert len(news) >= 4
    for request_id in news:
        assert answers[request_id].text[: len(alone["r4"])] == alone["r4"]
    assert alone["r4"] != alone["r8"]


def test_no_prefix_is_found_across_versions(engine: EngineUnderTest, world: World):
    """ADP-16, CACHE: the same tenant, salt and prompt; also back on version 1, whose own blocks are found again."""
    v1, v2 = (world.uses(name) for name in ("r8", "r4"))
    first = engine.ask(prompt(64), v1)
    second = engine.ask(prompt(64), v2)
    assert (first.usage.cached, second.usage.cached) == (0, 0)
    assert engine.ask(prompt(64), v2).usage.cached == 48
    back = engine.ask(prompt(64), v1)
    assert (back.usage.cached, back.text) == (48, first.text)


def test_deleted_and_made_again(make_engine: Make, world: World, tmp_path: Path):
    """ADP-16: under the same name with other weights it is another digest: nothing of the old one is found or said.
    With the very same files it is the same version: its blocks may be found, and it says the same."""
    store = FolderStore(tmp_path / "blobs")
    made = [random_adapter(world.model, tmp_path / f"{seed}", rank=4, seed=seed) for seed in (50, 51)]
    old = store_adapter(store, made[0], world.base)
    engine = make_engine(store=store)
    before = engine.ask(prompt(64), [old])
    delete(store, old)
    new = store_adapter(store, made[1], world.base)
    assert new != old
    after = engine.ask(prompt(64), [new])
    assert after.usage.cached == 0
    assert after.text == make_engine(store=store).ask(prompt(64), [new]).text != before.text
    assert store_adapter(store, made[0], world.base) == old
    again = engine.ask(prompt(64), [old])
    assert (again.usage.cached, again.text) == (48, before.text)


# -- deleted under its requests ---------------------------------------------------------------------------------------


def delete(store: FolderStore, digest: str) -> None:
    shutil.rmtree(store.root / "adapters" / digest)


class Gate:
    """Holds the loader's thread before a job, until it is opened."""

    def __init__(self, engine: EngineUnderTest, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        loader: Any = engine.engine.loader
        real = getattr(loader, job)

        def held(argument: Any) -> Any:
            self.reached.set()
            assert self._open.wait(60)
            return real(argument)

        monkeypatch.setattr(loader, job, held)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def victim(world: World, tmp_path: Path) -> tuple[FolderStore, str]:
    """A store with the world's adapters, and one more that will be deleted."""
    store = FolderStore(tmp_path / "blobs")
    shutil.copytree(world.store.root, store.root)
    return store, store_adapter(store, random_adapter(world.model, tmp_path / "victim", rank=4, seed=60), world.base)


@pytest.mark.parametrize(("job", "survives"), [("_fetch", False), ("_read", False), ("_place", True)])
def test_deleted_while_it_is_on_its_way(
    make_engine: Make,
    world: World,
    victim: tuple[FolderStore, str],
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    survives: bool,
):
    """ADP-17: what was read is served to its end; else its requests fail, never with the base's answer. Others go on
    meanwhile."""
    store, digest = victim
    alone = make_engine(store=store).ask(prompt(30), [digest]).text
    engine = make_engine(store=store)
    other = engine.submit(prompt(20), world.uses("r8"), max_tokens=100, ignore_eos=True)
    while not engine.answers[other].tokens[0]:
        engine.step_when_ready()
    gate = Gate(engine, job, monkeypatch)
    asked = engine.submit(prompt(30), [digest])
    while not gate.reached.is_set():
        engine.step()
    delete(store, digest)
    num_before = len(engine.answers[other].tokens[0])
    engine.step()
    assert len(engine.answers[other].tokens[0]) == num_before + 1  # nobody waits for the loader
    gate.open()
    answers = engine.finish()
    if survives:
        assert answers[asked].text == alone
    else:
        assert answers[asked].fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert len(answers[other].text) == 100
    engine.assert_at_rest()


@pytest.mark.parametrize("point", ["queued", "in its prompt", "running", "preempted"])
def test_deleted_while_its_requests_wait_or_run(
    make_engine: Make, world: World, victim: tuple[FolderStore, str], point: str
):
    """ADP-17: they end as if nothing had happened; once it has left memory, a new one fails, and others do not."""
    store, digest = victim
    alone = make_engine(store=store).ask(prompt(60), [digest], max_tokens=40).text
    room = {"max_sequences": 1} if point == "queued" else {"max_sequences": 4, "adapter_slots": 1, "host_adapters": 1}
    engine = make_engine(store=store, max_batch_tokens=24, **room)
    if point == "queued":
        engine.submit(prompt(20), max_tokens=60, ignore_eos=True)
        engine.step()
    asked = engine.submit(prompt(60), [digest], max_tokens=40)
    reached: dict[str, Callable[[], bool]] = {
        "queued": lambda: engine.core.residency.state_of(digest) is State.HOST,
        "in its prompt": lambda: any(0 < s.num_computed < 60 for s in engine.core.scheduler.running),
        "running": lambda: len(engine.answers[asked].tokens[0]) >= 5,
        "preempted": lambda: len(engine.answers[asked].tokens[0]) >= 5,
    }
    while not reached[point]():
        engine.step_when_ready()
    if point == "preempted":
        engine.core.scheduler.preempt(next(iter(engine.core.scheduler.running)))
    delete(store, digest)
    assert engine.finish()[asked].text == alone
    if point != "queued":
        assert len(engine.ask(prompt(9), world.uses("r8")).text) == 16  # the only room is its now
        assert engine.ask(prompt(60), [digest]).fail_code is FailCode.ADAPTER_UNAVAILABLE
        assert len(engine.ask(prompt(9), world.uses("r4")).text) == 16
    engine.assert_at_rest()
