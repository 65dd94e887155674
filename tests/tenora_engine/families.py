"""Tiny random models of every family, made by transformers: each switches on what sets its family apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW: Final = 21  # no multiple of a block, shorter than the prompts of the tests

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": {"model_type": "llama", "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    "smollm2": {"model_type": "llama", "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 100_000.0}},
    "mistral": {"model_type": "mistral", "head_dim": 12, "sliding_window": WINDOW},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "sliding_window": WINDOW},  # but no switch: no window
    "qwen2.5": {
        "model_type": "qwen2",
        "rope_parameters": {"rope_theta": 1_000_000.0},
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    "smollm3": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": WINDOW,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 20,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
}


def tiny_model(folder: Path, family: str, **changes: Any) -> Path:
    """Norms and biases are random: at their initial values one that is forgotten would not show."""
    torch.manual_seed(7)
    settings = _SIZES | FAMILIES[family] | changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    center = 0.0 if family == "gemma3" else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(center - 0.5, center + 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder
