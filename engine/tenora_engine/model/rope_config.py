"""RoPE as a Hugging Face config.json describes it, in the old form and in the new one. No torch here.

old   rope_theta, rope_scaling {type or rope_type, factor, ...}; Gemma 3 also rope_local_base_freq
new   rope_parameters {rope_type, rope_theta, factor, ...}; Gemma 3: such an object for each type of layer
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tenora_engine.model.spec import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSpec,
    UnsupportedModel,
    YarnScaling,
)

Config: TypeAlias = Mapping[str, Any]

# transformers' names of the types of layers.
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

# All that any kind reads, and `finetuned`, which none does: a parameter beside these would change the computation.
_KINDS: Final = ("default", "dynamic", "linear", "llama3", "yarn")
_PARAMETERS: Final = frozenset(
    {
        *("type", "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim", "finetuned"),
    }
)


def parse_ropes(config: Config, theta: float, local_theta: float | None) -> dict[str, RopeSpec]:
    """By type of layer. `theta` is the family's default; `local_theta` that of a family with two kinds of layers.

    Raises UnsupportedModel, and KeyError, TypeError or ValueError where the config is not as it should be.
    """
    scaling, parameters = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    theta = config.get("rope_theta") or theta
    if local_theta is None:
        rope = _rope(config, scaling or parameters, theta)
        return {FULL: rope, SLIDING: rope}
    if unknown := set(parameters) - {FULL, SLIDING}:
        raise UnsupportedModel(f"rope_parameters of {min(unknown)!r} are not served: they go by type of layer")
    local_theta = config.get("rope_local_base_freq") or local_theta
    return {
        FULL: _rope(config, {**(parameters.get(FULL) or {}), **scaling}, theta),
        SLIDING: _rope(config, parameters.get(SLIDING) or {}, local_theta),
    }


def context_length(config: Config, ropes: Mapping[str, RopeSpec]) -> int:
    """max_position_embeddings, or what YaRN stretches the original context to: its users are told to set no more."""
    stretched = [
        int(rope.scaling.factor * rope.scaling.original_context)
        for rope in ropes.values()
        if isinstance(rope.scaling, YarnScaling)
    ]
    return max([int(config["max_position_embeddings"]), *stretched])


def _rope(config: Config, parameters: Config, theta: float) -> RopeSpec:
    if unknown := set(parameters) - _PARAMETERS:
        raise UnsupportedModel(f"the RoPE parameter {min(unknown)!r} is not served")
    for holder in (parameters, config):
        if (share := holder.get("partial_rotary_factor")) not in (None, 1.0):
            raise UnsupportedModel(f"partial_rotary_factor {share} is not served")
    return RopeSpec(float(parameters.get("rope_theta") or theta), _scaling(config, parameters))


def _scaling(config: Config, parameters: Config) -> RopeScaling | None:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    match kind:
        case "default":
            return None
        case "dynamic":
            # Nothing is scaled up to max_position_embeddings, and no more is served: beyond it each new longest
            # position changes every angle, so that transformers' own answer depends on how a text came in passes.
            return None
        case "linear":
            return LinearScaling(float(parameters["factor"]))
        case "llama3":
            return Llama3Scaling(
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_context=_original_context(config, parameters),
            )
        case "yarn":
            return _yarn(config, parameters)
    raise UnsupportedModel(f"RoPE of type {kind!r} is not served (served: {', '.join(_KINDS)})")


def _yarn(config: Config, parameters: Config) -> YarnScaling:
    original = _original_context(config, parameters)
    factor = float(parameters.get("factor") or int(config["max_position_embeddings"]) / original)
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            magnitude = _magnitude(factor, mscale) / _magnitude(factor, mscale_all_dim)
        else:
            magnitude = _magnitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context=original,
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        truncate=bool(parameters.get("truncate", True)),
        magnitude=float(magnitude),
    )


def _magnitude(factor: float, mscale: float) -> float:
    """YaRN's temperature of attention, section 3.4 of its paper, as a factor of the rotated vectors."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _original_context(config: Config, parameters: Config) -> int:
    for value in (
        config.get("original_max_position_embeddings"),
        parameters.get("original_max_position_embeddings"),
        config["max_position_embeddings"],
    ):
        if value is not None:
            return int(value)
    raise KeyError("original_max_position_embeddings")
