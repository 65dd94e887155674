"""Which modules of the base a config adapts, with what rank and scaling, by PEFT's own rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tenora_adapters.base import EMBEDDING, HEAD, BaseModel
from tenora_adapters.errors import ConfigRejected
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.manifest import Warning
from tenora_adapters.peft_config import PeftConfig, is_named

PREFIX: Final = "base_model.model."  # of every tensor that PEFT saves
# The first numbered segment below another one: `foo.bar.10.baz` is layer 10, `10.baz` is none.
_LAYER: Final = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")


@dataclass(frozen=True)
class Target:
    module: str
    rank: int
    scaling: float


@dataclass(frozen=True)
class Targets:
    modules: tuple[Target, ...]  # the embedding, then in the base's order; at least one
    warnings: tuple[Warning, ...]


def resolve_targets(config: PeftConfig, base: BaseModel, limits: Limits = DEFAULT_LIMITS) -> Targets:
    """Raises ConfigRejected when nothing is adapted, or a scaling is out of range."""
    used: set[str] = set()
    candidates = base.linears if config.all_linear else (EMBEDDING, *base.linears)
    modules = tuple(_resolve(config, module, limits, used) for module in candidates if _is_target(config, module))
    if not modules:
        raise ConfigRejected(
            "target_modules choose no module of the base model, whose linear modules are "
            + ", ".join(sorted({module.rpartition(".")[2] for module in base.linears})),
            param="target_modules",
            code="no_modules",
        )
    return Targets(modules, tuple(_warnings(config, [target.module for target in modules], used)))


def _is_target(config: PeftConfig, module: str) -> bool:
    if module in config.excluded or any(f".{name}." in f".{module}." for name in config.saved):
        return False
    if config.all_linear:
        return module != HEAD
    if module not in config.targets:
        return False
    if not config.layers or module in config.targets.names:  # a full path stands above the choice of layers
        return True
    return _layer_of(config, module) in config.layers


def _layer_of(config: PeftConfig, module: str) -> int | None:
    if not config.layer_expressions:
        found = _LAYER.match(module)
    else:
        matches = (expression.match(module) for expression in config.layer_expressions)
        found = next((match for match in matches if match is not None), None)
    number = found["idx"] if found else None
    return int(number) if number is not None else None


def _resolve(config: PeftConfig, module: str, limits: Limits, used: set[str]) -> Target:
    """The first pattern that matches decides. Adds the fields of those that did to `used`."""
    rank, alpha = config.rank, config.alpha
    by_rank = next((pattern for pattern in config.rank_patterns if pattern.expression.match(module)), None)
    if by_rank is not None:
        rank = by_rank.rank
        used.add(f"rank_pattern: {by_rank.key}")
    by_alpha = next((pattern for pattern in config.alpha_patterns if pattern.expression.match(module)), None)
    if by_alpha is not None:
        alpha = by_alpha.alpha
        used.add(f"alpha_pattern: {by_alpha.key}")
    scaling = config.scaling(rank, alpha)
    if abs(scaling) > limits.max_scaling:
        raise ConfigRejected(
            f"{module} would be scaled by {scaling:g}, at most {limits.max_scaling:g} is allowed",
            param="lora_alpha",
            code="scaling_out_of_range",
        )
    return Target(module, rank, scaling)


def _warnings(config: PeftConfig, modules: list[str], used: set[str]) -> list[Warning]:
    keys = [f"rank_pattern: {pattern.key}" for pattern in config.rank_patterns]
    keys += [f"alpha_pattern: {pattern.key}" for pattern in config.alpha_patterns]
    found = [Warning("unmatched_pattern", f"{key[:100]} decides no adapted module") for key in keys if key not in used]
    for name in config.targets.names:
        if not any(is_named(module, name) for module in modules):
            found.append(Warning("unmatched_target", f"target_modules: {name[:80]!r} matches no module"))
    layers = {_layer_of(config, module) for module in modules}
    for layer in config.layers:
        if layer not in layers:
            found.append(Warning("unmatched_layer", f"layers_to_transform: no module of layer {layer} is adapted"))
    if config.fan_in_fan_out:
        found.append(Warning("ignored_setting", "fan_in_fan_out has no effect on linear modules"))
    return found
