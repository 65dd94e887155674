"""Adapters for the tiny base of `tests/tenora_platform/conftest.py`, as PEFT would save them."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
from safetensors.numpy import save

HIDDEN = 16


def config(**given: Any) -> bytes:
    plain = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
        "inference_mode": True,
    }
    return json.dumps(plain | given).encode()


def weights(seed: int = 1, rank: int = 4, poison: float | None = None) -> bytes:
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(2):
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{at}.lora_A.weight"] = rng.standard_normal((rank, HIDDEN)).astype(np.float32)
        tensors[f"{at}.lora_B.weight"] = rng.standard_normal((HIDDEN, rank)).astype(np.float32)
    if poison is not None:
        tensors[f"{at}.lora_B.weight"][3, 1] = poison
    return save(tensors)


def pair(seed: int = 1, base: str | None = "tiny", **given: Any) -> list[tuple[str, tuple[str, bytes]]]:
    """As the parts of an upload of two files."""
    return [
        ("files", ("adapter_config.json", config(base_model_name_or_path=base))),
        ("files", ("adapter_model.safetensors", weights(seed, **given))),
    ]


def archive(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return packed.getvalue()
