"""Every family against transformers + PEFT on tiny random weights: teacher-forced log-probabilities in fp32.

Adapters take the way of an upload: validated, published, loaded by the engine. Prompts are longer than the window and
the chunks, whose borders are those of neither windows nor blocks; then tokens follow one by one.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import ALL_LINEAR, EngineUnderTest, Oracle, random_adapter, store_adapter
from families import FAMILIES, WINDOW, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3TextScaledWordEmbedding

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_engine.config import Dtype
from tenora_engine.kernels import REFERENCE
from tenora_engine.wire import AdapterUse

TOLERANCE = 1e-4  # of a log-probability
PROMPT = random.Random(3).choices(range(3, 128), k=75)
CHUNK = 29
NUM_DECODED = 12
WINDOWED = ("mistral", "qwen2.5", "smollm3", "gemma3")


@dataclass(frozen=True)
class Tiny:
    model: Path
    adapter: str  # its digest
    store: FolderStore
    oracle: Oracle


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def tiny(family: str, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model of the family, and an adapter of all that can be adapted."""
    root = tmp_path_factory.mktemp("tiny")
    model = tiny_model(root / "model", family)
    adapter = random_adapter(model, root / "adapter", rank=4, seed=1, targets=(*ALL_LINEAR, "lm_head"), spread=0.3)
    store = FolderStore(root / "blobs")
    digest = store_adapter(store, adapter, read_base_model(model))
    return Tiny(model, digest, store, Oracle(model, {"adapter": adapter}))


@pytest.fixture
def make(tiny: Tiny) -> Iterator[Callable[..., EngineUnderTest]]:
    made: list[EngineUnderTest] = []

    def build(model: Path | None = None, **options: Any) -> EngineUnderTest:
        made.append(
            EngineUnderTest(model or tiny.model, tiny.store, max_batch_tokens=CHUNK, max_sequences=4, **options)
        )
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def differences(engine: EngineUnderTest, oracle: Oracle, uses: list[str] | list[AdapterUse], name: str | None) -> Any:
    """Of the log-probability of each token after the first, of the prompt and of those decoded: fp32 [tokens]."""
    answer = engine.ask(PROMPT, uses, max_tokens=NUM_DECODED, ignore_eos=True, prompt_logprobs=0, logprobs=0)
    tokens = PROMPT + answer.text
    got = [entry for entry in answer.prompt_logprobs or () if entry is not None] + answer.logprobs[0]
    assert [entry.token_id for entry in got] == tokens[1:]
    assert len(tokens) == len(PROMPT) + NUM_DECODED
    want = oracle.logprobs(tokens[:-1], name).gather(-1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    return (torch.tensor([entry.logprob for entry in got]) - want).abs()


def worst(engine: EngineUnderTest, oracle: Oracle, uses: list[str] | list[AdapterUse], name: str | None) -> float:
    return float(differences(engine, oracle, uses, name).max())


def edited(tiny: Tiny, folder: Path, **config: Any) -> Path:
    """A copy of the model whose config.json says something else."""
    shutil.copytree(tiny.model, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | config))
    return folder


def test_base_and_adapter_equal_transformers_and_peft(make: Callable[..., EngineUnderTest], tiny: Tiny):
    engine = make()
    assert worst(engine, tiny.oracle, [], None) < TOLERANCE
    assert worst(engine, tiny.oracle, [tiny.adapter], "adapter") < TOLERANCE
    engine.assert_at_rest()


def test_a_wrong_scale_fails_the_gate(make: Callable[..., EngineUnderTest], tiny: Tiny):
    """The first positive control."""
    assert worst(make(), tiny.oracle, [AdapterUse(tiny.adapter, scale=1.1)], "adapter") > TOLERANCE


@pytest.mark.parametrize("family", WINDOWED, indirect=True)
@pytest.mark.parametrize("error", [-1, 1])
def test_a_window_off_by_one_fails_the_gate(
    make: Callable[..., EngineUnderTest], tiny: Tiny, tmp_path: Path, error: int
):
    wrong = differences(make(edited(tiny, tmp_path / "model", sliding_window=WINDOW + error)), tiny.oracle, [], None)
    assert wrong.max() > TOLERANCE
    shorter = min(WINDOW, WINDOW + error)
    assert wrong[: shorter - 1].max() < TOLERANCE  # where nothing has left the window, nothing differs


def test_a_forgotten_norm_or_bias_fails_the_gate(
    make: Callable[..., EngineUnderTest], tiny: Tiny, family: str, tmp_path: Path
):
    """Each norm and bias of a layer, one by one, is given to the engine as it would be without it."""
    tensors = load_file(tiny.model / "model.safetensors")
    inner = ("model.layers.1.", "model.norm.")
    vectors = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 1 and name.startswith(inner)}
    assert len(vectors) == {"llama": 10, "qwen2": 6, "qwen2.5": 6, "qwen3": 9, "gemma3": 7}.get(family, 3)
    for name, tensor in vectors.items():
        forgotten = torch.zeros_like(tensor) if "bias" in name or family == "gemma3" else torch.ones_like(tensor)
        folder = edited(tiny, tmp_path / name)
        save_file(tensors | {name: forgotten}, folder / "model.safetensors")
        assert worst(make(folder), tiny.oracle, [], None) > TOLERANCE, name


@pytest.mark.parametrize("family", ["smollm3"], indirect=True)
def test_positions_where_there_should_be_none_fail_the_gate(
    make: Callable[..., EngineUnderTest], tiny: Tiny, tmp_path: Path
):
    wrong = edited(tiny, tmp_path / "model", no_rope_layers=[1, 1, 1])
    assert worst(make(wrong), tiny.oracle, [], None) > TOLERANCE


@pytest.mark.parametrize("family", ["gemma3"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"query_pre_attn_scalar": 16}, id="scale-of-attention"),
        pytest.param({"rope_parameters": None}, id="scaling-of-global-layers"),
        pytest.param({"hidden_activation": "silu"}, id="activation"),
        pytest.param({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, id="layer-types"),
    ],
)
def test_what_sets_gemma_apart_counts(
    make: Callable[..., EngineUnderTest], tiny: Tiny, tmp_path: Path, change: dict[str, Any]
):
    assert worst(make(edited(tiny, tmp_path / "model", **change)), tiny.oracle, [], None) > TOLERANCE


def test_bf16_is_no_further_from_the_truth_than_transformers(make: Callable[..., EngineUnderTest], tiny: Tiny):
    """The truth is fp32; on average over the tokens, with a margin for the luck of rounding."""
    engine = make(dtype=Dtype.BF16)
    ours = engine.ask(PROMPT, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert ours is not None
    picked = torch.tensor(PROMPT[1:]).unsqueeze(1)
    truth = tiny.oracle.logprobs(PROMPT, None)[:-1].gather(1, picked).squeeze(1)
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(tiny.model, dtype=torch.bfloat16)(torch.tensor([PROMPT])).logits
    theirs = logits[0, :-1].float().log_softmax(-1).gather(1, picked).squeeze(1)
    got = torch.tensor([entry.logprob for entry in ours if entry is not None])
    assert (got - truth).abs().mean() < 1.3 * (theirs - truth).abs().mean()


def test_gemmas_norms_and_embedding_in_bf16_bit_for_bit():
    """1 + w is not rounded to bf16 and the norm is rounded once; sqrt(hidden) is rounded before it multiplies."""
    torch.manual_seed(0)
    hidden = 1152
    x = torch.randn(64, hidden, dtype=torch.bfloat16)
    norm = Gemma3RMSNorm(hidden).to(torch.bfloat16)
    embedding = Gemma3TextScaledWordEmbedding(64, hidden, 0, embed_scale=hidden**0.5).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.uniform_(-0.5, 0.5)
        got = REFERENCE.add_rms_norm(x.clone(), None, norm.weight.float() + 1.0, norm.eps).out
        assert torch.equal(got, norm(x))
        rounded = torch.tensor(hidden**0.5, dtype=torch.bfloat16).item()
        assert torch.equal(embedding.weight * rounded, embedding(torch.arange(64)))
