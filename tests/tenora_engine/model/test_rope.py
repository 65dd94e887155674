"""Angles against transformers' own modules, at the sizes and contexts of published models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from published_configs import PUBLISHED
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tenora_engine.model.hf_config import parse_spec
from tenora_engine.model.rope import Rope
from tenora_engine.model.rope_config import FULL, SLIDING

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
CONFIGS = PUBLISHED | {
    f"YaRN, {name}": PUBLISHED["Llama 2 7B"] | {"max_position_embeddings": 16_384, "rope_scaling": YARN | more}
    for name, more in {
        "attention factor": {"attention_factor": 0.7},
        "mscale": {"mscale": 1.0, "mscale_all_dim": 0.8},
        "mscale alone": {"mscale": 0.5},
        "betas": {"beta_fast": 20, "beta_slow": 3},
        "betas that meet": {"beta_fast": 4, "beta_slow": 4},
        "untruncated": {"truncate": False},
        "no stretch": {"factor": 1.0},
    }.items()
}


def theirs(config: dict[str, Any], positions: torch.Tensor, kind: str) -> torch.Tensor:
    settings = AutoConfig.for_model(**config)
    x, ids = torch.zeros(1), positions.unsqueeze(0)
    if config["model_type"] == "gemma3_text":
        cos, sin = Gemma3RotaryEmbedding(settings)(x, ids, layer_type=kind)
    else:
        cos, sin = LlamaRotaryEmbedding(settings)(x, ids)  # the other families' are copies of it
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_angles_over_the_whole_context(name: str):
    config = CONFIGS[name]
    spec = parse_spec(config, {})
    last = spec.context_length - 1
    positions = torch.cat((torch.arange(300), torch.arange(0, last, 997), torch.tensor([last])))
    for layer in spec.layers[3:6]:  # SmolLM3's without positions and Gemma's global one are among them
        if layer.rope is not None:
            got = Rope(layer.rope, spec.head_dim, torch.device("cpu")).cos_sin(positions)
            want = theirs(config, positions, FULL if layer.window is None else SLIDING)
            torch.testing.assert_close(got, want, atol=1e-6, rtol=0)  # the last bit of an angle would be 0.01 here
