"""What the decoder must know of a model, read from a Hugging Face `config.json`. No torch here.

Whatever the decoder does not compute is refused by name at start-up: never served approximately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final


class UnsupportedModel(Exception):
    """config.json asks for something that the decoder does not compute."""


class Activation(StrEnum):
    """Of the MLP's gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"  # GELU by its tanh formula


class RopeKind(StrEnum):
    DEFAULT = "default"
    LINEAR = "linear"  # positions divided by `factor`
    LLAMA3 = "llama3"  # low frequencies divided by `factor`, high ones kept, a ramp between


@dataclass(frozen=True, slots=True)
class RopeSpec:
    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A Llama-shaped decoder: pre-norm blocks of grouped-query attention with RoPE and a gated SiLU MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens, prompt and completion together
    rms_norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


_FAMILIES: Final = frozenset({"llama"})
_DEFAULT_THETA: Final = 10_000.0


def read_spec(folder: Path) -> ModelSpec:
    """Spec of the model in `folder`. Raises UnsupportedModel naming what is not computed, OSError, ValueError."""
    config = json.loads((folder / "config.json").read_bytes())
    generation_file = folder / "generation_config.json"
    generation = json.loads(generation_file.read_bytes()) if generation_file.is_file() else {}
    return parse_spec(config, generation)


def parse_spec(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelSpec:
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise UnsupportedModel(f"model_type {family!r} is not served (served: {', '.join(sorted(_FAMILIES))})")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r} is not served")
    if config.get("quantization_config"):
        raise UnsupportedModel("quantized weights (quantization_config) are not served")
    try:
        num_heads = int(config["num_attention_heads"])
        hidden_size = int(config["hidden_size"])
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        return ModelSpec(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or hidden_size // num_heads),
            context_length=int(config["max_position_embeddings"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope=_rope(config),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            eos_token_ids=_token_ids(eos),
        )
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error}") from error


def _rope(config: Mapping[str, Any]) -> RopeSpec:
    """RoPE of a config in the old form (`rope_theta`, `rope_scaling`) or the new one (`rope_parameters`)."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or _DEFAULT_THETA)
    name = parameters.get("rope_type", parameters.get("type", RopeKind.DEFAULT.value))
    if name not in set(RopeKind):
        raise UnsupportedModel(f"RoPE of type {name!r} is not served (served: {', '.join(RopeKind)})")
    if (share := parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise UnsupportedModel(f"partial_rotary_factor {share} is not served")
    kind = RopeKind(name)
    if kind is RopeKind.DEFAULT:
        return RopeSpec(theta)
    if kind is RopeKind.LINEAR:
        return RopeSpec(theta, kind, factor=float(parameters["factor"]))
    return RopeSpec(
        theta,
        kind,
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_context=int(parameters["original_max_position_embeddings"]),
    )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
