"""Adapters of any kind that PEFT makes, trained in no time: whatever training would change is set at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM


def load_base(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make_adapter(base: Any, folder: Path, settings: Mapping[str, Any], *, seed: int = 0, **saving: Any) -> Path:
    """What PEFT saves of an adapter of `base` (taken over: PEFT changes it) with these settings."""
    torch.manual_seed(seed)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if "lora_magnitude" in name or "norm" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.4))
            elif "lora_" in name:
                parameter.normal_(0, 0.2)
            else:  # what is trained whole
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(str(folder), **saving)
    return folder


def oracle_logprobs(base: Any, folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """PEFT's own, of an adapter loaded from its files on a fresh base: fp32 [len(tokens), vocab]."""
    model = PeftModel.from_pretrained(base, str(folder)).eval()
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0].log_softmax(-1)
