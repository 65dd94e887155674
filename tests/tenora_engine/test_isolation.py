"""One request's failure is its own: adapters, numbers, sampling, grammars, steps. Also what failed elsewhere."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from constraint_double import Script
from engine_under_test import (
    ROUTE,
    TINY_VOCAB,
    EngineUnderTest,
    Oracle,
    World,
    prompt,
    random_adapter,
    store_adapter,
)
from safetensors.torch import load_file, save_file

from tenora_adapters.manifest import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE
from tenora_engine import sampler
from tenora_engine.wire import FailCode, FinishReason, Usage

Make = Callable[..., EngineUnderTest]
MANY = ("r1", "r4", "r8", "r64")


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def make_engine(request: pytest.FixtureRequest, make_engine: Make) -> Make:
    return functools.partial(make_engine, async_step=request.param)


# -- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [WEIGHTS_FILE, CONFIG_FILE, MANIFEST_FILE, "vanished"])
def test_a_corrupt_or_vanished_adapter_fails_alone(make_engine: Make, world: World, tmp_path, file: str):
    """ADP-17: never the base's answer, and others live."""
    engine = make_engine()
    digest = store_adapter(
        world.store, random_adapter(world.model, tmp_path, rank=2, seed=crc32(str(tmp_path).encode())), world.base
    )
    folder = world.store.root / "adapters" / digest
    if file == "vanished":
        for path in folder.iterdir():
            path.unlink()
    else:
        content = bytearray((folder / file).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / file).write_bytes(content)
    bad, base, good = (engine.submit(prompt(9), uses) for uses in ([digest], [], world.uses("r8")))
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert answers[bad].failed.usage == Usage(0, 0, 0)  # QTA-03: what never began costs nothing
    assert answers[base].text == engine.ask(prompt(9)).text
    assert answers[good].text == engine.ask(prompt(9), world.uses("r8")).text
    engine.assert_at_rest()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"base_fingerprint": "0" * 64}, "another base"),
        ({"dora": True}, "DoRA"),
        ({"alora_invocation": ()}, "aLoRA"),
        ({"schema": 99}, "schema"),
    ],
)
def test_an_adapter_that_is_not_for_this_engine_is_refused_by_name(
    make_engine: Make, world: World, tmp_path, change: dict[str, Any], word: str
):
    folder = random_adapter(world.model, tmp_path, rank=2, seed=crc32(str(tmp_path).encode()))
    digest = store_adapter(world.store, folder, world.base, **change)
    answer = make_engine().ask(prompt(5), [digest])
    assert answer.fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert word in answer.failed.message


def test_values_that_are_not_finite_end_one_request(make_engine: Make, world: World, tmp_path):
    """ADP-04, the second line: weights that pass every check and still overflow. The neighbours' answers are their
    solo ones, nothing of it is cached, the adapter is set aside."""
    engine = make_engine()
    folder = random_adapter(world.model, tmp_path, rank=2, seed=77)
    scale_weights(folder, 1e30)
    digest = store_adapter(world.store, folder, world.base)
    neighbours = [engine.submit(prompt(20, seed), world.uses(name)) for seed, name in enumerate((None, "r8"))]
    bad = engine.submit(prompt(40), [digest])
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.NUMERICAL
    for seed, (request_id, name) in enumerate(zip(neighbours, (None, "r8"), strict=True)):
        assert answers[request_id].text == make_engine().ask(prompt(20, seed), world.uses(name)).text
    engine.assert_at_rest()
    assert engine.ask(prompt(40), [digest]).fail_code is FailCode.ADAPTER_UNAVAILABLE
    # Whoever gets the poisoned blocks next does not notice.
    for seed in range(20):
        assert (
            engine.ask(prompt(200, seed), max_tokens=2).text == make_engine().ask(prompt(200, seed), max_tokens=2).text
        )


def scale_weights(folder, factor: float) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name: tensor * factor for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)


def test_weights_with_nan_are_not_loaded(make_engine: Make, world: World, tmp_path):
    """ADP-04: whatever let it pass at upload."""
    folder = random_adapter(world.model, tmp_path, rank=2, seed=78)
    scale_weights(folder, float("nan"))
    answer = make_engine().ask(prompt(5), [store_adapter(world.store, folder, world.base)])
    assert answer.fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert "NaN" in answer.failed.message


def test_an_exception_on_the_loading_thread_ends_its_requests(engine: EngineUnderTest, world: World, monkeypatch):
    """ENG-04: whatever it is, it comes back as that adapter's failure, and the thread goes on to the next."""
    loader: Any = engine.engine.loader
    real = loader._read
    monkeypatch.setattr(loader, "_read", lambda digest: 1 / 0 if digest == world.digests["r4"] else real(digest))
    bad, good, base = (engine.submit(prompt(9), world.uses(name)) for name in ("r4", "r8", None))
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert answers[good].text == engine.ask(prompt(9), world.uses("r8")).text
    assert answers[base].text == engine.ask(prompt(9)).text
    engine.assert_at_rest()


def test_base_requests_beside_more_adapters_than_slots(make_engine: Make, world: World, oracle: Oracle):
    """Seen elsewhere: they were answered with another tenant's adapter."""
    engine = make_engine(adapter_slots=2, host_adapters=3, max_batch_tokens=40)
    asked: dict[str, tuple[list[int], str | None]] = {}
    for seed in range(4):
        for name in (None, "r1", None, "r4", "r8", None, "r64"):
            asked[engine.submit(prompt(9, seed), world.uses(name), max_tokens=12)] = (prompt(9, seed), name)
            engine.step()
    answers = engine.finish()
    for request_id, (tokens, name) in asked.items():
        assert oracle.is_greedy(tokens, answers[request_id].text, name), name
    engine.assert_at_rest()


# -- numbers ----------------------------------------------------------------------------------------------------------


def poison(engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch, request_id: str, end: int) -> None:
    """From position `end` - 1 on the model gives NaN for this request, in its keys and values too."""
    executor: Any = engine.engine.executor
    real = executor._runner.forward

    def forward(layout: Any) -> Any:
        computed = real(layout)
        for item in layout.placed:
            if item.part.chunk.sequence.request.key.request_id == request_id and item.part.chunk.end >= end:
                with torch.inference_mode():
                    computed.hidden[item.begin : item.end] = float("nan")
                    if item.part.num_drawn:
                        computed.logits[item.first_drawn : item.first_drawn + item.part.num_drawn] = float("nan")
                    for layer in executor._runner._cache:
                        for pages in layer.pages:
                            pages.flatten(0, 1)[layout.places[item.begin : item.end]] = float("nan")
        return computed

    monkeypatch.setattr(executor._runner, "forward", forward)


def test_nan_in_mid_answer_ends_one_request(engine: EngineUnderTest, world: World, monkeypatch: pytest.MonkeyPatch):
    """Also when the next step is launched already, on its values. Nothing of it is found in the cache; whoever gets its
    blocks next does not notice; its adapter is set aside, which ends the adapter's other requests."""
    plain = {name: engine.ask(prompt(30), world.uses(name), max_tokens=40).text for name in (None, "r8", "r64")}
    poison(engine, monkeypatch, "request-4", end=30 + 8)
    bad, same, other, base = (
        engine.submit(prompt(30), world.uses(name), salt=b"cold", max_tokens=40) for name in ("r8", "r8", "r64", None)
    )
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.NUMERICAL
    assert answers[bad].failed.usage == Usage(30, 0, 8)
    assert answers[bad].tokens[0] == plain["r8"][:8]
    assert answers[same].fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert (answers[other].text, answers[base].text) == (plain["r64"], plain[None])
    engine.assert_at_rest()
    assert engine.ask(prompt(30), world.uses("r8")).fail_code is FailCode.ADAPTER_UNAVAILABLE
    for seed in range(16):
        assert len(engine.ask(prompt(200, seed), max_tokens=2).text) == 2


CALL = [1, 2]  # in no `prompt`


@pytest.mark.parametrize(
    ("tokens", "beside", "end", "blamed"),
    [
        (prompt(30), [], 38, []),
        ([*prompt(30), *CALL], [], 16, []),
        ([*prompt(30), *CALL], [], 38, ["activated"]),
        (prompt(30), ["r8"], 38, ["r8"]),
        ([*prompt(30), *CALL], ["r8"], 38, []),
    ],
    ids=["uncalled", "before-its-start", "called", "uncalled-beside-another", "both-apply"],
)
def test_only_an_adapter_that_has_applied_is_set_aside(
    make_engine: Make,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokens: list[int],
    beside: list[str],
    end: int,
    blamed: list[str],
):
    """NaN of a request with an activated LoRA, by where it is called: others go on to be served with it."""
    folder = random_adapter(world.model, tmp_path, rank=2, seed=79, alora_invocation_tokens=CALL)
    digests = {"activated": store_adapter(world.store, folder, world.base), "r8": world.digests["r8"]}
    engine = make_engine(max_batch_tokens=16, max_sequences=4)
    poison(engine, monkeypatch, "request-1", end)
    bad = engine.submit(tokens, [digests[name] for name in ("activated", *beside)])
    others = {name: engine.submit([*prompt(9), *CALL], [digest]) for name, digest in digests.items()}
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.NUMERICAL
    assert [name for name, other in others.items() if answers[other].failed] == blamed
    assert [name for name, digest in digests.items() if engine.ask(prompt(9), [digest]).failed] == blamed
    engine.assert_at_rest()


def test_nan_of_the_base_poisons_no_block(engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch):
    """The same prompt again: what was sound is found in the cache, and the answer is whole."""
    poison(engine, monkeypatch, "request-1", end=40 + 12)
    bad = engine.ask(prompt(40), max_tokens=30)
    assert bad.fail_code is FailCode.NUMERICAL
    again = engine.ask(prompt(40) + bad.tokens[0], max_tokens=18)
    assert again.usage.cached == 48
    assert engine.ask(prompt(40), salt=b"cold", max_tokens=30).text == bad.tokens[0] + again.text


# -- sampling, grammars, steps ----------------------------------------------------------------------------------------


def test_an_exception_in_one_rows_sampling_ends_one_request(engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch):
    """ENG-04: injected by request id."""
    real = sampler.sample

    def faulty(logits: torch.Tensor, rows: Any, *masks: Any) -> Any:
        if any(row.sequence.request.key.request_id == "request-2" and row.num_generated == 3 for row in rows):
            raise RuntimeError("injected")
        return real(logits, rows, *masks)

    monkeypatch.setattr(sampler, "sample", faulty)
    ids = [engine.submit(prompt(8, seed)) for seed in range(3)]
    answers = engine.finish()
    assert answers[ids[1]].fail_code is FailCode.INTERNAL
    assert answers[ids[1]].failed.usage == Usage(8, 0, 3)
    for index in (0, 2):
        assert answers[ids[index]].text == engine.ask(prompt(8, index)).text
    engine.assert_at_rest()


def test_an_exception_anywhere_in_a_step_ends_one_request(engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch):
    """ENG-04: before sampling too; the others' tokens are those of their solo runs."""
    runner: Any = engine.engine.executor._runner
    real = runner.forward

    def faulty(layout: Any) -> Any:
        for item in layout.placed:
            chunk = item.part.chunk
            if chunk.sequence.request.key.request_id == "request-2" and chunk.end == 8 + 3:
                raise RuntimeError("injected")
        return real(layout)

    monkeypatch.setattr(runner, "forward", faulty)
    ids = [engine.submit(prompt(8, seed)) for seed in range(3)]
    answers = engine.finish()
    assert answers[ids[1]].fail_code is FailCode.INTERNAL
    for index in (0, 2):
        assert answers[ids[index]].text == engine.ask(prompt(8, index)).text
    engine.assert_at_rest()


def test_a_step_that_fails_as_a_whole_is_survived(engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch):
    runner: Any = engine.engine.executor._runner
    real = runner.forward
    monkeypatch.setattr(runner, "forward", lambda layout: 1 / 0)
    ids = [engine.submit(prompt(8, seed)) for seed in range(3)]
    answers = engine.finish()
    assert {answers[request_id].fail_code for request_id in ids} == {FailCode.INTERNAL}
    engine.assert_at_rest()
    monkeypatch.setattr(runner, "forward", real)
    assert len(engine.ask(prompt(8)).text) == 16


class Raises(Script):
    """Fails when it is told what was drawn."""

    def accept(self, token_id: int) -> bool:
        raise RuntimeError("injected")


class Refuses(Script):
    """Does not take what it allowed."""

    def accept(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize(
    "kind", [functools.partial(Script, raises_at=3), Raises, Refuses], ids=["mask", "raise", "refuse"]
)
def test_an_exception_in_one_grammar_ends_one_request(engine: EngineUnderTest, kind: Callable[..., Script]):
    """ENG-04: where its mask is made, and where it is told what was drawn."""
    ids = [engine.submit(prompt(8, seed)) for seed in range(3)]
    requests = {request.key.request_id: request for request in engine.core._live}
    requests[ids[1]].sequences[0].constraint = kind([range(3, TINY_VOCAB)] * 20)
    answers = engine.finish()
    assert answers[ids[1]].fail_code is FailCode.INTERNAL
    for index in (0, 2):
        assert answers[ids[index]].text == engine.ask(prompt(8, index)).text
    engine.assert_at_rest()


def test_prompt_logprobs_beside_eight_plain_requests(make_engine: Make, world: World):
    """Seen elsewhere: they ended the engine."""
    plain = make_engine().ask(prompt(100, 1), world.uses("r8"), max_tokens=4, prompt_logprobs=3)
    engine = make_engine(max_batch_tokens=48)
    others = [engine.submit(prompt(20, seed), world.uses((None, *MANY)[seed % 5])) for seed in range(8)]
    asked = engine.submit(prompt(100, 1), world.uses("r8"), max_tokens=4, prompt_logprobs=3)
    answers = engine.finish()
    got, want = answers[asked].prompt_logprobs, plain.prompt_logprobs
    assert [entry.token_id for entry in got[1:]] == prompt(100, 1)[1:]
    assert [entry.logprob for entry in got[1:]] == pytest.approx([entry.logprob for entry in want[1:]], abs=1e-4)
    assert all(len(answers[request_id].text) == 16 for request_id in others)


def test_nothing_is_generated_for_a_client_that_left(engine: EngineUnderTest, world: World):
    """API-19; seen elsewhere: it went on to the end. Here one step, the one that was launched, and that for nobody."""
    gone, stays = engine.submit(prompt(9), max_tokens=200), engine.submit(prompt(9), world.uses("r8"), max_tokens=30)
    while not engine.answers[stays].tokens[0]:
        engine.step_when_ready()
    engine.core.abort(ROUTE, gone)
    engine.step()
    answer = engine.answers[gone]
    assert answer.finish == {0: FinishReason.ABORT}
    assert answer.usage.completion == len(answer.text)
    held = engine.cache.pool.num_blocks - engine.cache.pool.num_free
    assert held == sum(len(sequence.blocks) for sequence in engine.core.scheduler.running)
    assert {sequence.request.key.request_id for sequence in engine.core.scheduler.running} == {stays}
    assert len(engine.finish()[stays].text) == 30


def test_the_executors_thread_ends_with_the_engine(make_engine: Make):
    """Also with a step on its way."""
    before = set(threading.enumerate())
    engine = make_engine()
    engine.submit(prompt(9), max_tokens=200)
    engine.step()
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"executor_0"}
    engine.close()
    assert set(threading.enumerate()) <= before
