"""Every tensor of a checkpoint has its place, and every place its tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from families import tiny_model
from safetensors.torch import load_file, save_file

from tenora_adapters.base import weight_files
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.spec import UnsupportedModel
from tenora_engine.model.weights import ModelWeights, load_weights

Tensors = dict[str, torch.Tensor]
FILE = "model.safetensors"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return load_weights(weight_files(folder), read_spec(folder), dtype, torch.device("cpu"))


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "gemma", "gemma3")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.layers.0.self_attn.sinks", torch.zeros(6), r"self_attn\.sinks"),
        ("vision_tower.weight", torch.zeros(2, 2), "vision_tower"),
        ("model.layers.2.self_attn.k_norm.weight", None, r"lacks model\.layers\.2\.self_attn\.k_norm\.weight"),
        ("model.layers.1.mlp.up_proj.weight", torch.zeros(79, 48), r"\[79, 48\], .* \[80, 48\]"),
        ("model.layers.1.self_attn.q_norm.weight", torch.zeros(1), r"\[1\], .* \[16\]"),
        ("model.embed_tokens.weight", torch.zeros(127, 48), r"\[127, 48\], .* \[128, 48\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(gemma: Path, name: str, tensor: torch.Tensor | None, message: str):
    tensors = load_file(gemma / FILE) | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    save_file(tensors, gemma / FILE)
    with pytest.raises(UnsupportedModel, match=message):
        load(gemma)


def test_a_config_of_another_split_of_heads_is_refused(gemma: Path):
    """In sum as many rows for q, k and v: nothing but the shapes of each would show."""
    config = json.loads((gemma / "config.json").read_bytes())
    (gemma / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4, "num_key_value_heads": 2}))
    with pytest.raises(UnsupportedModel, match="q_proj"):
        load(gemma)


def test_several_files_are_one_checkpoint(gemma: Path):
    whole = load(gemma)
    tensors = load_file(gemma / FILE)
    (gemma / FILE).unlink()
    for number, names in enumerate((list(tensors)[::2], list(tensors)[1::2])):
        save_file({name: tensors[name] for name in names}, gemma / f"model-{number}.safetensors")
    assert torch.equal(load(gemma).embedding, whole.embedding)


def test_norms_stay_in_fp32_and_are_offset(gemma: Path):
    weights = load(gemma, torch.bfloat16)
    stored = load_file(gemma / FILE)["model.layers.0.post_feedforward_layernorm.weight"]
    found = weights.layers[0].mlp_out_norm
    assert found is not None
    assert torch.equal(found, stored + 1.0)
    assert weights.embedding.dtype == torch.bfloat16
