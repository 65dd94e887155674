"""Activated LoRA: an adapter that applies from the last occurrence of its own tokens in the prompt, against PEFT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import TINY_VOCAB, Answer, EngineUnderTest, prompt, store_adapter
from families import tiny_model
from peft import PeftModel
from peft_adapters import load_base, make_adapter, oracle_logprobs
from transformers import DynamicCache

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_engine.activation import first_position

Make = Callable[..., EngineUnderTest]
TOLERANCE = 1e-4
CALL = [TINY_VOCAB - 1, TINY_VOCAB - 2, TINY_VOCAB - 1]
OTHER_CALL = [TINY_VOCAB - 3]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "called": {"r": 4, "target_modules": LINEAR, "alora_invocation_tokens": CALL},
    "called-head": {"r": 3, "target_modules": ["v_proj", "lm_head"], "alora_invocation_tokens": CALL},
    "other": {"r": 2, "target_modules": LINEAR, "alora_invocation_tokens": OTHER_CALL},
    "plain": {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
}


def words(length: int, seed: int) -> list[int]:
    """Without any of the tokens that call an adapter."""
    return [token % (TINY_VOCAB - 8) + 3 for token in prompt(length, seed)]


PROMPTS = {
    "once": [*words(41, 0), *CALL, *words(9, 1)],
    "twice": [*words(10, 2), *CALL, *words(21, 3), *CALL, *words(6, 4)],
    "overlapping": [*words(20, 5), *CALL, *CALL[1:], *words(5, 6)],
    "at-the-end": [*words(37, 7), *CALL],
    "at-the-start": [*CALL, *words(30, 8)],
    "cut-off": [*words(38, 9), *CALL[:2]],
}
STARTS = {"once": 41, "twice": 34, "overlapping": 22, "at-the-end": 37, "at-the-start": 0, "cut-off": None}


@dataclass(frozen=True)
class Served:
    model: Path
    store: FolderStore
    folders: dict[str, Path]
    digests: dict[str, str]
    always: FolderStore  # the same adapters, each of them applied from position 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = tmp_path_factory.mktemp("activated")
    model = tiny_model(root / "model", "llama")
    base, store, always = read_base_model(model), FolderStore(root / "blobs"), FolderStore(root / "always")
    folders = {
        kind: make_adapter(load_base(model), root / kind, settings, seed=seed)
        for seed, (kind, settings) in enumerate(KINDS.items())
    }
    digests = {kind: store_adapter(store, folder, base) for kind, folder in folders.items()}
    for folder in folders.values():
        store_adapter(always, folder, base, alora_invocation=None)
    return Served(model, store, folders, digests, always)


def worst_difference(answer: Answer, want: torch.Tensor) -> float:
    """Of the log-probabilities of a prompt's tokens and of the best alternatives to them."""
    assert answer.prompt_logprobs is not None, answer.failed
    assert len(answer.prompt_logprobs) == len(want)
    entries = [(place, entry) for place, entry in enumerate(answer.prompt_logprobs[1:]) if entry is not None]
    assert len(entries) == len(want) - 1
    pairs = [(place, pair) for place, e in entries for pair in ((e.token_id, e.logprob), *e.top)]
    return max(abs(float(want[place, token_id]) - logprob) for place, (token_id, logprob) in pairs)


@pytest.mark.parametrize("budget", [512, 6])
@pytest.mark.parametrize("case", PROMPTS)
@pytest.mark.parametrize("kind", ["called", "called-head"])
def test_against_peft(served: Served, make_engine: Make, kind: str, case: str, budget: int):
    """At all positions, however the prompt is cut. Applied from position 0 it is another answer: the test can fail."""
    tokens, uses = PROMPTS[case], [served.digests[kind]]
    assert first_position(tokens, CALL) == STARTS[case]
    want = oracle_logprobs(load_base(served.model), served.folders[kind], tokens)
    asked: dict[str, Any] = {"max_tokens": 0, "prompt_logprobs": 3}
    engine = make_engine(served.model, store=served.store, max_batch_tokens=budget, max_sequences=4)
    assert worst_difference(engine.ask(tokens, uses, **asked), want) < TOLERANCE
    always = make_engine(served.model, store=served.always)
    difference = worst_difference(always.ask(tokens, uses, **asked), want)
    assert difference < TOLERANCE if STARTS[case] == 0 else difference > 1e-2


def oracle_of_answer(served: Served, kind: str, tokens: Sequence[int], start: int | None) -> torch.Tensor:
    """PEFT's own where generated tokens stand behind a prompt that called the adapter at `start`."""
    if start is None:
        with torch.inference_mode():
            return load_base(served.model)(torch.tensor([list(tokens)])).logits[0].log_softmax(-1)
    model = PeftModel.from_pretrained(load_base(served.model), str(served.folders[kind])).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)]), alora_offsets=[len(tokens) - start]).logits
    return logits[0].log_softmax(-1)


def check_answer(served: Served, answer: Answer, kind: str, case: str, choice: int = 0) -> None:
    generated, logprobs = answer.tokens[choice], answer.logprobs[choice]
    want = oracle_of_answer(served, kind, [*PROMPTS[case], *generated], STARTS[case])
    for place, entry in enumerate(logprobs, start=len(PROMPTS[case]) - 1):
        assert abs(float(want[place, entry.token_id]) - entry.logprob) < TOLERANCE
    assert len(generated) == len(logprobs) > 0


def test_what_is_generated_calls_nobody(served: Served, make_engine: Make):
    """As in PEFT's `generate`: the prompt decides, also where every token that follows is the one that calls."""
    engine = make_engine(served.model, store=served.store)
    (call,) = OTHER_CALL
    answer = engine.ask(PROMPTS["once"], [served.digests["other"]], logit_bias={call: 100.0}, logprobs=0)
    assert set(answer.text) == {call}
    want = oracle_of_answer(served, "other", [*PROMPTS["once"], *answer.text], None)
    for place, entry in enumerate(answer.logprobs[0], start=len(PROMPTS["once"]) - 1):
        assert abs(float(want[place, call]) - entry.logprob) < TOLERANCE


@pytest.mark.parametrize(
    "options",
    [
        {"kv_blocks": 16},
        {"kv_blocks": 16, "host_kv_blocks": 64, "swap_block_tokens": 0.0},
        {"draft_tokens": 3},
    ],
    ids=["recomputed", "swapped", "guessed"],
)
def test_beside_others(served: Served, make_engine: Make, options: dict[str, Any]):
    """Choices, preemptions and guesses leave the answers PEFT's."""
    engine = make_engine(served.model, store=served.store, max_batch_tokens=24, max_sequences=8, **options)
    asked = {
        (kind, case): engine.submit(PROMPTS[case], [served.digests[kind]], max_tokens=24, logprobs=0, n=2)
        for kind, case in [
            ("called", "once"),
            ("called-head", "twice"),
            ("called", "cut-off"),
            ("called", "at-the-end"),
        ]
    }
    answers = engine.finish()
    for (kind, case), request_id in asked.items():
        for choice in range(2):
            check_answer(served, answers[request_id], kind, case, choice)
    assert (engine.core.scheduler.num_preemptions > 0) == ("kv_blocks" in options)
    assert (engine.core.scheduler.num_swaps > 0) == ("host_kv_blocks" in options)
    engine.assert_at_rest()


def test_the_bases_prefix_is_found(served: Served, make_engine: Make):
    """What a tenant's request to the base left in the cache serves its adapter up to the call, and the other way
    round; another tenant finds nothing, and behind the call the adapter finds its own blocks only."""
    engine, tokens = make_engine(served.model, store=served.store), PROMPTS["once"]
    cold = make_engine(served.model, store=served.store, prefix_cache=False)

    def cached(kind: str | None, salt: bytes = b"tenant", prompt: list[int] = tokens) -> int:
        uses = [] if kind is None else [served.digests[kind]]
        warm, want = (e.ask(prompt, uses, salt=salt, logprobs=0) for e in (engine, cold))
        assert warm.text == want.text
        assert warm.usage is not None
        return warm.usage.cached

    assert cached(None) == 0
    assert cached("called") == 32  # of the call at 41
    assert cached("called") == 48
    assert cached("called-head") == 32
    assert cached("other") == 48  # nobody calls it
    assert cached("plain") == 0
    assert cached("called", b"other tenant") == 0
    assert cached(None, b"other tenant") == 32
    assert cached(None) == 48
    assert cached("called", prompt=PROMPTS["at-the-start"]) == 0
    assert cached(None, prompt=PROMPTS["at-the-start"]) == 0


def test_composed(served: Served, make_engine: Make):
    """Beside an adapter that applies throughout, each from its own position."""
    tokens = PROMPTS["once"]
    model = PeftModel.from_pretrained(load_base(served.model), str(served.folders["called"])).eval()
    model.load_adapter(str(served.folders["plain"]), "plain")
    model.base_model.set_adapter(["default", "plain"])
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), alora_offsets=[len(tokens) - 41]).logits[0]
    engine = make_engine(served.model, store=served.store)
    uses = [served.digests[kind] for kind in ("called", "plain", "other")]
    answer = engine.ask(tokens, uses, max_tokens=0, prompt_logprobs=3)
    assert worst_difference(answer, logits.log_softmax(-1)) < TOLERANCE
    less = engine.ask(tokens, uses[1:], max_tokens=0, prompt_logprobs=3)
    assert worst_difference(less, logits.log_softmax(-1)) > 1e-2


TWO_CALLS: dict[str, dict[str, int]] = {
    "one-block": {"called": 33, "other": 41},
    "one-block-turned": {"other": 33, "called": 41},
    "two-blocks": {"called": 20, "other": 43},
    "two-blocks-turned": {"other": 20, "called": 43},
    "at-the-edges": {"called": 32, "other": 48},
}


def oracle_of_two(served: Served, starts: Mapping[str, int], tokens: Sequence[int]) -> torch.Tensor:
    """PEFT has one offset for all its adapters: the tokens are read in pieces, each with those that have started. In
    doubles: what its floats round away in pieces is as much as the tolerance."""
    first, *others = starts
    model = PeftModel.from_pretrained(load_base(served.model), str(served.folders[first]), first).eval()
    for kind in others:
        model.load_adapter(str(served.folders[kind]), kind)
    model.double()
    past, logits = DynamicCache(), []
    for begin, end in pairwise([0, *sorted(starts.values()), len(tokens)]):
        model.base_model.set_adapter([kind for kind, start in starts.items() if start <= begin])
        piece = torch.tensor([list(tokens[begin:end])])
        with torch.inference_mode():
            read = model(piece, past_key_values=past, use_cache=True, alora_offsets=[end - begin])
        logits.append(read.logits[0])
    return torch.cat(logits).log_softmax(-1)


@pytest.mark.parametrize("budget", [512, 6])
@pytest.mark.parametrize("named", [("called", "other"), ("other", "called")], ids="-".join)
@pytest.mark.parametrize("case", TWO_CALLS)
def test_two_that_start_apart(served: Served, make_engine: Make, case: str, named: Sequence[str], budget: int):
    """Each from its own call, also behind what the base and the first of them alone left in the cache."""
    starts = TWO_CALLS[case]
    (first, second), calls = starts, {"called": CALL, "other": OTHER_CALL}
    tokens = [*words(starts[first], 10), *calls[first]]
    tokens += [*words(starts[second] - len(tokens), 11), *calls[second], *words(9, 12)]
    assert {kind: first_position(tokens, call) for kind, call in calls.items()} == starts
    engine = make_engine(served.model, store=served.store, max_batch_tokens=budget, max_sequences=4)

    def ask(*kinds: str, **asked: Any) -> Answer:
        return engine.ask(tokens, [served.digests[kind] for kind in kinds], **asked)

    want = oracle_of_two(served, starts, tokens)
    whole: dict[str, Any] = {"max_tokens": 0, "prompt_logprobs": 3, "salt": b"whole"}
    assert worst_difference(ask(*named, **whole), want) < TOLERANCE
    assert all(worst_difference(ask(kind, **whole), want) > 1e-2 for kind in named)

    for kinds, end in [((), 0), ((first,), starts[first]), (named, starts[second]), (named, len(tokens))]:
        answer = ask(*kinds, logprobs=0)
        assert answer.usage is not None
        assert answer.usage.cached == end // 16 * 16
        if kinds == named:
            generated = answer.tokens[0]
            want = oracle_of_two(served, starts, [*tokens, *generated])
            for place, entry in enumerate(answer.logprobs[0], start=len(tokens) - 1):
                assert abs(float(want[place, entry.token_id]) - entry.logprob) < TOLERANCE
