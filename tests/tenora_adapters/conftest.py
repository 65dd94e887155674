"""A tiny random Llama, and PEFT as the oracle of what an adapter of it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tenora_adapters.base import BaseModel, read_base_model
from tenora_adapters.package import StagedFiles
from tenora_adapters.targets import Target

_CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=96,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


@dataclass(frozen=True)
class Made:
    """An adapter as PEFT saved it, and what PEFT makes of it."""

    files: StagedFiles
    table: set[Target]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files.config.read_bytes())
        return found

    def write_config(self, **changes: Any) -> None:
        self.files.config.write_text(json.dumps(self.config | changes))

    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.files.weights)

    def write_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self.files.weights)


MakeAdapter = Callable[..., Made]


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    LlamaForCausalLM(_CONFIG).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base(base_folder: Path) -> BaseModel:
    return read_base_model(base_folder)


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    """Build one with PEFT: `make_adapter(r=4, target_modules=[...])`, with random A and B."""

    def make(**settings: Any) -> Made:
        settings.setdefault("target_modules", ["q_proj", "v_proj"])
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        folder = tmp_path / f"adapter-{len(list(tmp_path.iterdir()))}"
        get_peft_model(LlamaForCausalLM(_CONFIG), config).save_pretrained(str(folder), save_embedding_layers=False)
        # PEFT sorts the keys when it saves; trainers of other make do not, and the order has a meaning.
        patterns = {key: value for key, value in settings.items() if key.endswith("_pattern")}
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | patterns))
        loaded = PeftModel.from_pretrained(LlamaForCausalLM(_CONFIG), str(folder))
        table = {
            Target(name.removeprefix("base_model.model."), module.r["default"], module.scaling["default"])
            for name, module in loaded.named_modules()
            if isinstance(module, LoraLayer)
        }
        return Made(StagedFiles(folder / "adapter_config.json", folder / "adapter_model.safetensors"), table)

    return make
