"""Every kind of adapter that is accepted, against PEFT: alone, and mixed with eleven others in one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import Answer, EngineUnderTest, prompt, store_adapter
from families import tiny_model
from peft import PeftModel
from peft_adapters import load_base, make_adapter, oracle_logprobs

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_engine.config import CpuKernels
from tenora_engine.wire import AdapterUse, FailCode

TOLERANCE = 1e-4  # of a log-probability, at any position
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "target_modules": LINEAR},
    "patterns": {
        "r": 5,
        "lora_alpha": 7.5,
        "use_rslora": True,
        "target_modules": LINEAR,
        "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 9, "q_proj": 2, "^model.layers.0.mlp.up_proj": 3},
        "alpha_pattern": {"down_proj": 13, "v_proj": -4},
    },
    "bias-lora-only": {"r": 3, "target_modules": ["q_proj", "down_proj"], "bias": "lora_only"},
    "bias-all": {"r": 2, "target_modules": ["v_proj"], "bias": "all"},
    "dora-bias-all": {"r": 3, "target_modules": ["q_proj", "o_proj", "up_proj"], "use_dora": True, "bias": "all"},
    "norms": {
        "r": 2,
        "target_modules": ["k_proj"],
        "modules_to_save": ["input_layernorm", "post_attention_layernorm", "model.norm"],
    },
    "head-whole": {"r": 2, "target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
    "embedding-whole": {"r": 2, "target_modules": ["gate_proj"], "modules_to_save": ["embed_tokens"]},
    "embedding": {"r": 3, "target_modules": ["embed_tokens", "q_proj"]},
    "embedding-head": {"r": 6, "target_modules": ["embed_tokens", "lm_head"], "use_rslora": True},
    "embedding-dora": {"r": 4, "target_modules": ["embed_tokens", "lm_head", "v_proj"], "use_dora": True},
    "all-at-once": {
        "r": 4,
        "target_modules": ["q_proj", "up_proj", "embed_tokens"],
        "exclude_modules": r".*\.0\.mlp\..*",
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
        "bias": "all",
        "modules_to_save": ["input_layernorm", "lm_head"],
        "fan_in_fan_out": True,
    },
    "all-linear": {"r": 3, "target_modules": "all-linear", "exclude_modules": ["down_proj"]},
    "regex": {"r": 3, "target_modules": r".*\.[01]\.self_attn\.(q|k)_proj"},
}
BASES = ("llama", "qwen2", "gemma3")  # biases everywhere and a head of its own; tied; norms around 1, four in a block


@dataclass(frozen=True)
class Served:
    model: Path
    store: FolderStore
    folders: dict[str, Path]
    digests: dict[str, str]
    logprobs: dict[str, torch.Tensor]


TOKENS = {kind: prompt(17 + index, seed=index) for index, kind in enumerate(KINDS)}


@pytest.fixture(scope="module", params=BASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = tmp_path_factory.mktemp(request.param)
    model = tiny_model(root / "model", request.param)
    base, store = read_base_model(model), FolderStore(root / "blobs")
    kinds = dict(KINDS)
    if request.param == "gemma3":  # here a layer's own norm is four
        kinds["norms"] = kinds["norms"] | {"modules_to_save": ["layernorm", "model.norm"]}
    folders = {
        kind: make_adapter(load_base(model), root / kind, settings, seed=seed)
        for seed, (kind, settings) in enumerate(kinds.items())
    }
    digests = {kind: store_adapter(store, folder, base) for kind, folder in folders.items()}
    logprobs = {kind: oracle_logprobs(load_base(model), folder, TOKENS[kind]) for kind, folder in folders.items()}
    return Served(model, store, folders, digests, logprobs)


def worst_difference(answer: Answer, tokens: list[int], want: torch.Tensor) -> float:
    """Of the log-probability of each token, and of the best alternatives."""
    got = answer.prompt_logprobs
    assert got is not None, answer.failed
    worst = 0.0
    for position, entry in enumerate(got[1:], start=1):
        assert entry is not None
        for token_id, logprob in [(entry.token_id, entry.logprob), *entry.top]:
            worst = max(worst, abs(float(want[position - 1, token_id]) - logprob))
    assert len(got) == len(tokens)
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_alone(served: Served, make_engine: Callable[..., EngineUnderTest], kind: str):
    """ADP-01, ADP-06, ADP-08, ADP-10. And without the adapter it is another answer: the test can fail."""
    engine, tokens = make_engine(served.model, store=served.store), TOKENS[kind]
    alone = engine.ask(tokens, [served.digests[kind]], max_tokens=0, prompt_logprobs=3)
    assert worst_difference(alone, tokens, served.logprobs[kind]) < TOLERANCE
    base = engine.ask(tokens, max_tokens=0, prompt_logprobs=3)
    assert worst_difference(base, tokens, served.logprobs[kind]) > 1e-2


@pytest.mark.parametrize("kernels", [CpuKernels.AUTO, CpuKernels.TORCH])
def test_mixed(served: Served, make_engine: Callable[..., EngineUnderTest], kernels: CpuKernels):
    """ADP-19: all of them in one step, and the base among them."""
    options: dict[str, Any] = {"max_sequences": 16, "max_batch_tokens": 512, "adapter_slots": 16}
    engine = make_engine(served.model, store=served.store, cpu_kernels=kernels, **options)
    for digest in served.digests.values():  # loaded, so that nobody waits below
        engine.ask([5], [digest], max_tokens=1)
    asked = {
        engine.submit(TOKENS[kind], [served.digests[kind]], max_tokens=0, prompt_logprobs=3): kind for kind in KINDS
    }
    base = engine.submit(TOKENS["plain"], max_tokens=0, prompt_logprobs=3)
    engine.step()
    assert engine.core.load.waiting == 0
    answers = engine.finish()
    for request_id, kind in asked.items():
        assert worst_difference(answers[request_id], TOKENS[kind], served.logprobs[kind]) < TOLERANCE, kind
    with torch.inference_mode():
        want = load_base(served.model)(torch.tensor([TOKENS["plain"]])).logits[0].log_softmax(-1)
    assert worst_difference(answers[base], TOKENS["plain"], want) < TOLERANCE
    engine.assert_at_rest()


def composed_logprobs(served: Served, scales: dict[str, float], tokens: list[int]) -> torch.Tensor:
    """The base, with each adapter's change to each of its weights added at its scale: PEFT merges one at a time."""
    base = load_base(served.model)
    own = {name: value.clone() for name, value in base.state_dict().items()}
    for kind, scale in scales.items():
        merged = PeftModel.from_pretrained(load_base(served.model), str(served.folders[kind])).merge_and_unload()
        with torch.no_grad():
            for name, value in merged.state_dict().items():
                base.state_dict()[name].add_(value - own[name], alpha=scale)
    with torch.inference_mode():
        return base(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("served", ["llama"], indirect=True)  # of a tied base one weight would be two
@pytest.mark.parametrize(
    "scales",
    [
        {"plain": 0.7, "patterns": 1.0},
        {"norms": 0.5, "bias-all": -1.5, "head-whole": 2.0},
        {"dora-bias-all": 0.6, "embedding-dora": 1.0, "embedding-whole": 0.25, "all-at-once": 0.5},
    ],
    ids=str,
)
def test_composed(served: Served, make_engine: Callable[..., EngineUnderTest], scales: dict[str, float]):
    """Up to four adapters of any kind in one request: their changes to the base add up."""
    engine, tokens = make_engine(served.model, store=served.store), TOKENS["plain"]
    uses = [AdapterUse(served.digests[kind], scale) for kind, scale in scales.items()]
    want = composed_logprobs(served, scales, tokens)
    answer = engine.ask(tokens, uses, max_tokens=0, prompt_logprobs=3)
    assert worst_difference(answer, tokens, want) < TOLERANCE
    less = engine.ask(tokens, uses[1:], max_tokens=0, prompt_logprobs=3)
    assert worst_difference(less, tokens, want) > 1e-2


def test_a_norm_that_cannot_be_reached(make_engine: Callable[..., EngineUnderTest], tmp_path: Path):
    """What no factor makes of the base's norm is refused when it is loaded; the engine serves on."""
    made = load_base(tiny_model(tmp_path / "made", "llama"))
    with torch.no_grad():
        made.model.norm.weight[3] = 0.0
    made.save_pretrained(tmp_path / "model")
    settings = {"r": 1, "target_modules": ["q_proj"], "modules_to_save": ["model.norm"]}
    same = make_adapter(load_base(tmp_path / "model"), tmp_path / "same", settings)
    model = load_base(tmp_path / "model")
    with torch.no_grad():
        model.model.norm.weight[3] = 0.5
    other = make_adapter(model, tmp_path / "other", settings)
    store, base = FolderStore(tmp_path / "blobs"), read_base_model(tmp_path / "model")
    engine = make_engine(tmp_path / "model", store=store)
    refused = engine.ask(TOKENS["plain"], [store_adapter(store, other, base)])
    assert refused.fail_code is FailCode.ADAPTER_UNAVAILABLE
    assert refused.failed is not None
    assert "model.norm has a weight of 0" in refused.failed.message
    tokens = TOKENS["plain"]
    answer = engine.ask(tokens, [store_adapter(store, same, base)], max_tokens=0, prompt_logprobs=3)
    assert worst_difference(answer, tokens, oracle_logprobs(load_base(tmp_path / "model"), same, tokens)) < TOLERANCE
