"""Adapters with random weights for any base: what they answer is noise, what they cost is what trained ones cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tenora_adapters.base import BaseModel
from tenora_adapters.blobs import FolderStore
from tenora_adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from tenora_adapters.package import StagedFiles
from tenora_adapters.publish import publish
from tenora_adapters.validate import validate_package

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SPREAD = 0.01  # small enough that the base still speaks, large enough that no adapter is like another
POOL = 1 << 20  # random numbers that all tensors are cut from, each at a place of its own


def make_adapters(base: BaseModel, folder: Path, ranks: Sequence[int]) -> list[Path]:
    """PEFT folders `0000`, `0001`, ... of these ranks over all linear layers, fp16; made once and found again."""
    pool = (SPREAD * np.random.default_rng(0).standard_normal(2 * POOL)).astype(np.float16)
    made = []
    for number, rank in enumerate(ranks):
        path = folder / f"{number:04d}-rank-{rank}"
        if not (path / CONFIG_FILE).exists():  # written last
            path.mkdir(parents=True, exist_ok=True)
            save_file(_tensors(base, rank, pool, np.random.default_rng(number)), path / WEIGHTS_FILE)
            (path / CONFIG_FILE).write_text(json.dumps(_config(rank)))
        made.append(path)
    return made


def store_adapters(base: BaseModel, blobs: Path, folders: Sequence[Path]) -> list[str]:
    """Put them where an engine finds them, as an upload does; their digests."""
    store, digests = FolderStore(blobs), []
    for folder in folders:
        validated = validate_package(StagedFiles(config=folder / CONFIG_FILE, weights=folder / WEIGHTS_FILE), base)
        publish(store, validated)
        digests.append(validated.manifest.digest)
    return digests


def _tensors(base: BaseModel, rank: int, pool: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    tensors = {}
    for module, shape in base.linears.items():
        if module.rpartition(".")[2] in ALL_LINEAR:
            for name, rows, columns in (("lora_A", rank, shape.in_features), ("lora_B", shape.out_features, rank)):
                start = random.integers(POOL)
                values = pool[start : start + rows * columns].reshape(rows, columns)
                tensors[f"base_model.model.{module}.{name}.weight"] = values
    return tensors


def _config(rank: int) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(ALL_LINEAR),
        "inference_mode": True,
    }
