"""The engine's numbers against transformers + PEFT, in fp32 on a tiny base (the real one: test_real_model.py)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import (
    TINY_VOCAB,
    EngineUnderTest,
    Oracle,
    World,
    random_adapter,
    store_adapter,
    tiny_llama,
)

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_engine.wire import AdapterUse

NAMES = (None, "r1", "r4", "r8", "r64", "dora")
TOLERANCE = 1e-4  # of a log-probability, at any position


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(3, TINY_VOCAB), k=length)


def worst_difference(
    engine: EngineUnderTest, oracle: Oracle, tokens: list[int], adapters: list[Any], name: Any
) -> float:
    """Largest difference of the log-probability of each token, teacher-forced, and of the best alternatives."""
    got = engine.ask(tokens, adapters, max_tokens=0, prompt_logprobs=3).prompt_logprobs
    assert got is not None
    assert len(got) == len(tokens)
    assert got[0] is None
    want = oracle.logprobs(tokens, name)
    worst = 0.0
    for position, entry in enumerate(got[1:], start=1):
        assert entry is not None
        assert entry.token_id == tokens[position]
        for token_id, logprob in [(entry.token_id, entry.logprob), *entry.top]:
            worst = max(worst, abs(float(want[position - 1, token_id]) - logprob))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_every_position_has_the_oracles_logprob(
    engine: EngineUnderTest, oracle: Oracle, world: World, name: str | None
):
    assert worst_difference(engine, oracle, prompt(90), world.uses(name), name) < TOLERANCE


def test_a_wrong_scale_fails_the_gate(engine: EngineUnderTest, oracle: Oracle, world: World):
    """The positive control: what the gate above would miss, it would miss everywhere."""
    wrong = [AdapterUse(world.digests["r8"], scale=1.1)]
    assert worst_difference(engine, oracle, prompt(90), wrong, "r8") > TOLERANCE


def test_dora_of_layers_with_biases(make_engine: Callable[..., EngineUnderTest], tmp_path: Path):
    """ADP-08: the row scale is of the product alone, the bias stays as it is. And a head that is tied."""
    model = tiny_llama(tmp_path / "model", attention_bias=True, mlp_bias=True)
    targets = ("q_proj", "k_proj", "down_proj", "lm_head")
    folder = random_adapter(model, tmp_path / "dora", rank=3, seed=1, targets=targets, use_dora=True)
    store = FolderStore(tmp_path / "blobs")
    digest = store_adapter(store, folder, read_base_model(model))
    engine, oracle = make_engine(model, store=store), Oracle(model, {"dora": folder})
    assert worst_difference(engine, oracle, prompt(40), [digest], "dora") < TOLERANCE
    weaker = [AdapterUse(digest, scale=0.9)]
    assert worst_difference(engine, oracle, prompt(40), weaker, "dora") > TOLERANCE
    assert worst_difference(engine, oracle, prompt(40), [AdapterUse(digest, scale=0.0)], None) < TOLERANCE


def test_a_mixed_batch_equals_solo_runs_and_peft(
    make_engine: Callable[..., EngineUnderTest], oracle: Oracle, world: World
):
    """ADP-19: base and four adapters in one batch, lengths of one to three blocks, two requests of one adapter, and
    fewer slots than adapters, so that one is evicted and comes back."""
    engine = make_engine(adapter_slots=3, max_batch_tokens=40, max_sequences=8)
    cases = [(name, prompt(length, seed)) for seed, name in enumerate(NAMES) for length in (5, 16, 33)]
    asked = {engine.submit(tokens, world.uses(name), max_tokens=24): (name, tokens) for name, tokens in cases}
    answers = engine.finish()
    for request_id, (name, tokens) in asked.items():
        assert oracle.is_greedy(tokens, answers[request_id].text, name), name
        solo = make_engine(prefix_cache=False).ask(tokens, world.uses(name), max_tokens=24)
        assert answers[request_id].text == solo.text
    engine.assert_at_rest()


def test_adapters_differ(engine: EngineUnderTest, oracle: Oracle, world: World):
    """Without this the tests above could compare the base with itself; and the positive control of `is_greedy`."""
    answers = {name: engine.ask(prompt(16), world.uses(name)).text for name in NAMES}
    for name, other in itertools.product(NAMES, NAMES):
        assert oracle.is_greedy(prompt(16), answers[other], name) == (name == other)


def test_two_adapters_in_one_request_add_up(engine: EngineUnderTest, world: World):
    """Equal to one forward with both deltas: the sum of the segments, each at its scale."""
    tokens = prompt(40)
    both = [AdapterUse(world.digests["r8"], 0.5), AdapterUse(world.digests["r4"], 1.0)]
    got = engine.ask(tokens, both, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert got is not None
    want = _composed(world, {"r8": 0.5, "r4": 1.0}, tokens)
    for position, entry in enumerate(got[1:], start=1):
        assert entry is not None
        assert entry.logprob == pytest.approx(float(want[position - 1, entry.token_id]), abs=TOLERANCE)


def _composed(world: World, scales: dict[str, float], tokens: list[int]) -> torch.Tensor:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(world.model, dtype=torch.float32)
    model: Any = None
    for name in scales:
        if model is None:
            model = PeftModel.from_pretrained(base, str(world.folders[name]), adapter_name=name)
        else:
            model.load_adapter(str(world.folders[name]), adapter_name=name)
    model.add_weighted_adapter(list(scales), list(scales.values()), "sum", combination_type="cat")
    model.set_adapter("sum")
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tie_word_embeddings": False}, id="own-lm-head"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"num_key_value_heads": 6}, id="no-grouping"),
        pytest.param({"num_key_value_heads": 1, "head_dim": 16}, id="one-key-head"),
        pytest.param({"rope_theta": 500.0}, id="rope-theta"),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, id="rope-linear"),
        pytest.param(
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            id="rope-llama3",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            id="rope-yarn",
        ),
    ],
)
def test_every_flag_of_the_spec(make_engine: Callable[..., EngineUnderTest], tmp_path: Path, changes: dict[str, Any]):
    model = tiny_llama(tmp_path / "model", **changes)
    assert worst_difference(make_engine(model), Oracle(model, {}), prompt(100), [], None) < TOLERANCE


def test_dynamic_ntk_up_to_the_original_context_and_no_further(
    make_engine: Callable[..., EngineUnderTest], tmp_path: Path
):
    """Beyond it transformers' own answer would depend on how the text was cut into passes."""
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    model = tiny_llama(tmp_path / "model", max_position_embeddings=64, **scaling)
    engine, oracle = make_engine(model, max_batch_tokens=24, max_sequences=4), Oracle(model, {})
    tokens = prompt(40)
    answer = engine.ask(tokens, max_tokens=100, ignore_eos=True)
    assert len(answer.text) == 24
    assert oracle.is_greedy(tokens, answer.text, None)
    assert engine.ask(prompt(64), max_tokens=1).failed is not None
