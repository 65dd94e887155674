"""Reads a model's spec from its Hugging Face folder: config.json in all the forms that transformers has written.

A field that is absent has the default that transformers gives it, where that is one to rely on; else it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tenora_engine.model.rope_config import FULL, SLIDING, context_length, parse_ropes
from tenora_engine.model.spec import Activation, LayerSpec, ModelSpec, RopeSpec, UnsupportedModel

Config: TypeAlias = Mapping[str, Any]

# What would change the computation wherever it is set, and is computed nowhere here.
_REFUSED: Final = {
    "quantization_config": "quantized weights",
    "final_logit_softcapping": "softcapping of logits",
    "attn_logit_softcapping": "softcapping of attention",
    "use_bidirectional_attention": "attention to later tokens",
    "rope_interleaved": "RoPE of neighbouring dimensions",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "vision_config": "vision",
    "audio_config": "audio",
}
_ACTIVATIONS: Final = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}


def _never(config: Config, index: int) -> bool:
    return False


def _with_any_window(config: Config, index: int) -> bool:
    return config["sliding_window"] is not None


def _later_layers(config: Config, index: int) -> bool:
    return _window_is_on(config) and index >= int(config["max_window_layers"])


def _layers_without_positions(config: Config, index: int) -> bool:
    return _window_is_on(config) and not _has_positions(config, index)


def _window_is_on(config: Config) -> bool:
    return bool(config.get("use_sliding_window")) and config["sliding_window"] is not None


def _all_but_each_sixth(config: Config, index: int) -> bool:
    return (index + 1) % int(config.get("sliding_window_pattern") or 6) != 0


@dataclass(frozen=True, slots=True)
class _Family:
    """What is so in every model of a family, or where its config.json does not say otherwise."""

    slides: Callable[[Config, int], bool]  # whether a layer has a window, where `layer_types` does not say
    reads_layer_types: bool = True
    window_by_switch: bool = False  # `sliding_window` counts only with `use_sliding_window`
    theta: float = 10_000.0
    local_theta: float | None = None  # of layers with a window, where these have a RoPE of their own
    reads_no_rope_layers: bool = False
    tied: bool = False
    derives_head_dim: bool = True  # from the hidden size, where `head_dim` does not say
    qkv_bias: bool = False
    reads_attention_bias: bool = True
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    gemma: bool = False  # scaled embedding, four norms a block with weights around 1, its own scale of attention


_FAMILIES: Final = {
    "llama": _Family(_never, reads_layer_types=False, reads_mlp_bias=True),
    "mistral": _Family(_with_any_window, reads_layer_types=False, reads_attention_bias=False),
    "qwen2": _Family(_later_layers, window_by_switch=True, qkv_bias=True, reads_attention_bias=False),
    "qwen3": _Family(_later_layers, window_by_switch=True, derives_head_dim=False, qk_norm=True),
    "smollm3": _Family(
        _layers_without_positions,
        window_by_switch=True,
        theta=2_000_000.0,
        reads_no_rope_layers=True,
        tied=True,
        reads_mlp_bias=True,
    ),
    "gemma3_text": _Family(
        _all_but_each_sixth,
        theta=1_000_000.0,
        local_theta=10_000.0,
        tied=True,
        derives_head_dim=False,
        qk_norm=True,
        gemma=True,
    ),
}


def read_spec(folder: Path) -> ModelSpec:
    """Spec of the model in `folder`. Raises UnsupportedModel naming what is not computed, OSError, ValueError."""
    config = json.loads((folder / "config.json").read_bytes())
    generation_file = folder / "generation_config.json"
    generation = json.loads(generation_file.read_bytes()) if generation_file.is_file() else {}
    return parse_spec(config, generation)


def parse_spec(config: Config, generation: Config) -> ModelSpec:
    """Of the parsed config.json and generation_config.json. Raises UnsupportedModel."""
    name = config.get("model_type")
    if name not in _FAMILIES:
        raise UnsupportedModel(f"model_type {name!r} is not served (served: {', '.join(sorted(_FAMILIES))})")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise UnsupportedModel(f"{what} ({key}) is not served")
    try:
        return _parse(config, generation, _FAMILIES[name])
    except KeyError as error:
        raise UnsupportedModel(f"config.json lacks {error}") from error
    except (TypeError, ValueError, IndexError) as error:
        raise UnsupportedModel(f"config.json has a value that cannot be: {error}") from error


def _parse(config: Config, generation: Config, family: _Family) -> ModelSpec:
    activation = config["hidden_activation"] if family.gemma else config.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"an MLP with {activation!r} is not served (served: {', '.join(_ACTIVATIONS)})")
    hidden_size, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    derived = hidden_size // num_heads if family.derives_head_dim else None
    head_dim = int(config.get("head_dim") or derived or config["head_dim"])
    attention_bias = family.reads_attention_bias and bool(config.get("attention_bias", False))
    ropes = parse_ropes(config, family.theta, family.local_theta)
    length = context_length(config, ropes)
    return ModelSpec(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        layers=tuple(_layers(config, family, ropes, length)),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        context_length=length,
        rms_norm_eps=float(config["rms_norm_eps"]),
        attention_scale=float(config["query_pre_attn_scalar"] if family.gemma else head_dim) ** -0.5,
        activation=_ACTIVATIONS[activation],
        embedding_scale=hidden_size**0.5 if family.gemma else 1.0,
        unit_offset_norms=family.gemma,
        output_norms=family.gemma,
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family.reads_mlp_bias and bool(config.get("mlp_bias", False)),
        tied_embeddings=bool(config.get("tie_word_embeddings", family.tied)),
        eos_token_ids=_token_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
    )


def _layers(config: Config, family: _Family, ropes: Mapping[str, RopeSpec], length: int) -> Iterator[LayerSpec]:
    for index, kind in enumerate(_layer_types(config, family)):
        rope = ropes[kind] if not family.reads_no_rope_layers or _has_positions(config, index) else None
        window = int(config["sliding_window"]) if kind == SLIDING else length
        yield LayerSpec(rope, window if window < length else None)


def _layer_types(config: Config, family: _Family) -> list[str]:
    count = int(config["num_hidden_layers"])
    types = [SLIDING if family.slides(config, index) else FULL for index in range(count)]
    asked = config.get("layer_types") or types
    if set(asked) - {FULL, SLIDING} or len(asked) != count:
        raise UnsupportedModel(f"layer_types other than {count} of {FULL} and {SLIDING} are not served")
    if asked != types and not family.reads_layer_types:
        raise UnsupportedModel(f"layer_types that differ from the rule of {config['model_type']} are not served")
    if SLIDING in asked and family.window_by_switch and not config.get("use_sliding_window"):
        raise UnsupportedModel(f"layer_types ask for {SLIDING}, but use_sliding_window does not")
    return list(asked)


def _has_positions(config: Config, index: int) -> bool:
    """SmolLM3's `no_rope_layers` says 1 for a layer *with* RoPE; in its absence each fourth layer has none."""
    rotated = config.get("no_rope_layers")
    if rotated is not None:
        return bool(rotated[index])
    return (index + 1) % int(config.get("no_rope_layer_interval") or 4) != 0


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
