"""What an adapter brings whole: trained biases (`bias`), modules that were trained whole (`modules_to_save`), and the
copies of embedding and head that PEFT saves beside adapters of theirs (`save_embedding_layers`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tenora_adapters.base import EMBEDDING, HEAD, REVISION, BaseModel
from tenora_adapters.errors import ConfigRejected
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.manifest import Replacement, Warning
from tenora_adapters.peft_config import Bias, PeftConfig
from tenora_adapters.targets import PREFIX

# The norms of a block and of the whole. Those of single heads (`q_norm`, `k_norm`) are part of another operation.
_NORMS: Final = frozenset(
    {
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "norm",
    }
)


@dataclass(frozen=True)
class Whole:
    """A parameter that the weights file must hold, or may hold."""

    replacement: Replacement
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Replaced:
    parameters: tuple[Whole, ...]
    warnings: tuple[Warning, ...]


def resolve_replaced(
    config: PeftConfig, base: BaseModel, targets: Collection[str], limits: Limits = DEFAULT_LIMITS
) -> Replaced:
    """`targets`: the adapted modules. Raises ConfigRejected when what was trained whole is not served so."""
    if (config.saved or config.bias is not Bias.NONE) and base.revision < REVISION:
        raise ConfigRejected(
            "this base model was registered by an earlier version, which did not note its norms and biases; "
            "its operator has to restart the control plane where the model's folder is",
            param="modules_to_save" if config.saved else "bias",
            code="unsupported_feature",
        )
    modules = [module for module in _modules(base) if module.endswith(config.saved)]
    found = [*_biases(config, base, targets), *(_saved(module, base, limits) for module in modules)]
    warnings = [
        Warning("unmatched_target", f"modules_to_save: {name[:80]!r} matches no module")
        for name in config.saved
        if not any(module.endswith(name) for module in modules)
    ]
    return Replaced(tuple(found), tuple(warnings))


def possible_copies(base: BaseModel) -> Iterator[Whole]:
    """Under every name that PEFT gives them."""
    shape = (base.vocab_size, base.hidden_size)
    for module in (EMBEDDING, HEAD):
        for name in (f"{PREFIX}{module}.weight", f"{PREFIX}{module}.base_layer.weight"):
            yield Whole(Replacement(f"{module}.weight", name), shape)


def _biases(config: PeftConfig, base: BaseModel, targets: Collection[str]) -> Iterator[Whole]:
    if config.bias is Bias.NONE:
        return
    for module, linear in base.linears.items():
        name = f"{module}.bias"
        if name not in base.vectors:
            continue
        if module in targets:
            yield Whole(Replacement(name, f"{PREFIX}{module}.base_layer.bias"), (linear.out_features,))
        elif config.bias is Bias.ALL:
            yield Whole(Replacement(name, f"{PREFIX}{name}"), (linear.out_features,))


def _saved(module: str, base: BaseModel, limits: Limits) -> Whole:
    parameter = f"{module}.weight"
    if module in (EMBEDDING, HEAD):
        shape: tuple[int, ...] = (base.vocab_size, base.hidden_size)
        if shape[0] * shape[1] > limits.max_saved_elements:
            raise ConfigRejected(
                f"{module} has {shape[0]} x {shape[1]} weights; of a module that is trained whole "
                f"{limits.max_saved_elements} are served at most. Adapt it by LoRA instead",
                param="modules_to_save",
                code="module_too_large",
            )
    elif module.rpartition(".")[2] in _NORMS and parameter in base.vectors:
        shape = (base.vectors[parameter],)
    else:
        raise ConfigRejected(
            f"modules_to_save choose {module}: of modules that were trained whole, this server takes the norms of "
            f"blocks, {EMBEDDING.rpartition('.')[2]} and {HEAD}",
            param="modules_to_save",
            code="unsupported_feature",
        )
    return Whole(Replacement(parameter, PREFIX + parameter), shape)


def _modules(base: BaseModel) -> list[str]:
    """All of the base's modules, and those that they lie in."""
    leaves = [EMBEDDING, *base.linears, *(name.rpartition(".")[0] for name in base.vectors)]
    found: dict[str, None] = {}
    for leaf in leaves:
        parts = leaf.split(".")
        for count in range(1, len(parts) + 1):
            found[".".join(parts[:count])] = None
    return list(found)
