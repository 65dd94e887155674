"""adapter_config.json, read strictly: every field is either understood, of no effect on inference, or refused by name.

Nothing that the config names is opened, imported or fetched. Mappings keep the order of the text, because PEFT takes
the first pattern that matches.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tenora_adapters.errors import ConfigRejected
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.patterns import PatternBudget, compile_pattern
from tenora_adapters.strict_json import JsonRejected, read_object

# Of training, provenance or storage only: no effect on what the weights compute.
_IGNORED: Final = frozenset(
    {
        "auto_mapping",
        "corda_config",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
_READ: Final = frozenset(
    {
        "alora_invocation_tokens",
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "modules_to_save",
        "fan_in_fan_out",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_dora",
        "use_rslora",
    }
)
# The rest of PEFT's fields, and any that a later PEFT adds, must be off.
_FEATURES: Final = {  # what each is, and why it is refused
    "arrow_config": ("Arrow routing", "a request says which adapters it uses, not the hidden state"),
    "ensure_weight_tying": ("a head that is tied to an adapted embedding", "they are adapted apart"),
    "kasa_config": ("KaSA", "it truncates the base's own weights, which all adapters share"),
    "layer_replication": ("replicated layers", "the layers of the base are shared by all adapters as they are"),
    "lora_bias": ("a bias of B", "no trainer of causal models writes one; `bias` is served"),
    "megatron_config": ("Megatron layers", "they are not PEFT's own modules"),
    "target_parameters": ("adapters of bare parameters", "the served families have linear modules only"),
    "trainable_token_indices": ("trainable tokens", "adapt embed_tokens, or save it whole by modules_to_save"),
    "use_bdlora": ("block-diagonal LoRA", "its factors are stored in blocks"),
    "use_qalora": ("QA-LoRA", "it pools the inputs of quantized layers"),
}
# Other initialisations (PiSSA, OLoRA, LoftQ, ...) change the base's own weights, which all adapters share.
_HARMLESS_INITS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
_DEFAULT_RANK: Final = 8
_DEFAULT_ALPHA: Final = 8
_MAX_ALPHA: Final = 1e12
_MAX_LAYER: Final = 1 << 20

Number = int | float


class Bias(StrEnum):
    """Which of the base's biases were trained along."""

    NONE = "none"
    LORA_ONLY = "lora_only"  # those of adapted modules
    ALL = "all"


@dataclass(frozen=True)
class RankPattern:
    key: str
    expression: Any  # compiled by RE2
    rank: int


@dataclass(frozen=True)
class AlphaPattern:
    key: str
    expression: Any
    alpha: Number


@dataclass(frozen=True)
class Selection:
    """Modules chosen by an expression that must match the whole path, or by names that end it."""

    expression: Any | None = None
    names: tuple[str, ...] = ()

    def __contains__(self, module: str) -> bool:
        if self.expression is not None:
            return self.expression.fullmatch(module) is not None
        return any(is_named(module, name) for name in self.names)


def is_named(module: str, name: str) -> bool:
    """Whether `name` is the module's path or a dotted end of it."""
    return module == name or module.endswith(f".{name}")


@dataclass(frozen=True)
class PeftConfig:
    rank: int
    alpha: Number
    rslora: bool
    dora: bool
    fan_in_fan_out: bool
    all_linear: bool  # `targets` is empty then
    targets: Selection
    excluded: Selection
    layers: tuple[int, ...]  # empty: all
    layer_expressions: tuple[Any, ...]  # with a group `idx`; empty: the first numbered segment
    rank_patterns: tuple[RankPattern, ...]
    alpha_patterns: tuple[AlphaPattern, ...]
    base_name: str | None
    bias: Bias = Bias.NONE
    saved: tuple[str, ...] = ()  # ends of the names of modules that were trained whole
    invocation: tuple[int, ...] | None = None  # of an activated LoRA: it applies from their last occurrence on

    def scaling(self, rank: int, alpha: Number) -> float:
        """alpha / r, or alpha / sqrt(r) with rsLoRA."""
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def parse_config(text: bytes, limits: Limits = DEFAULT_LIMITS) -> PeftConfig:
    """Raises ConfigRejected."""
    if len(text) > limits.max_config_bytes:
        raise ConfigRejected(f"adapter_config.json is larger than {limits.max_config_bytes} bytes")
    try:
        fields = read_object(text)
    except JsonRejected as error:
        raise ConfigRejected(f"adapter_config.json: {error}") from error
    _refuse_unimplemented(fields)

    budget = PatternBudget(limits)
    targets = fields.get("target_modules")
    all_linear = isinstance(targets, str) and targets.lower() == "all-linear"
    if not targets or not isinstance(targets, str | list):
        raise _invalid("target_modules", "must be a list of module names, an expression or 'all-linear'", targets)
    layers = _layers(fields.get("layers_to_transform"), limits)
    layers_pattern = fields.get("layers_pattern")
    if isinstance(targets, str) and (fields.get("layers_to_transform") is not None or layers_pattern is not None):
        raise _invalid("layers_to_transform", "cannot go with target_modules that are not a list", targets)
    if layers_pattern and not layers:
        raise _invalid("layers_pattern", "needs layers_to_transform beside it", layers_pattern)

    rank = _rank(fields.get("r", _DEFAULT_RANK), "r", limits)
    config = PeftConfig(
        rank=rank,
        alpha=_alpha(fields.get("lora_alpha", _DEFAULT_ALPHA), "lora_alpha"),
        rslora=_flag(fields, "use_rslora"),
        dora=_flag(fields, "use_dora"),
        fan_in_fan_out=_flag(fields, "fan_in_fan_out"),
        all_linear=all_linear,
        targets=Selection() if all_linear else _selection(targets, "target_modules", budget),
        excluded=_selection(fields.get("exclude_modules") or [], "exclude_modules", budget),
        layers=layers,
        layer_expressions=tuple(
            compile_pattern(r"(?:^|.*?\.){}\.(?P<idx>\d+)\.", text, "layers_pattern", budget)
            for text in _texts(layers_pattern or [], "layers_pattern", limits)
        ),
        rank_patterns=tuple(
            RankPattern(key, compile_pattern(_ANYWHERE, key, "rank_pattern", budget), _rank(value, where, limits))
            for key, value, where in _mapping(fields, "rank_pattern", limits)
        ),
        alpha_patterns=tuple(
            AlphaPattern(key, compile_pattern(_ANYWHERE, key, "alpha_pattern", budget), _alpha(value, where))
            for key, value, where in _mapping(fields, "alpha_pattern", limits)
        ),
        base_name=_base_name(fields.get("base_model_name_or_path")),
        bias=_bias(fields.get("bias", "none")),
        saved=_saved(fields.get("modules_to_save") or [], budget),
        invocation=_invocation(fields.get("alora_invocation_tokens"), limits),
    )
    if config.invocation is not None:
        _refuse_unactivatable(config)
    return config


_MODULE_NAME: Final = re.compile(r"\w+(\.\w+)*", re.ASCII)
_ANYWHERE: Final = r"(.*\.)?({})$"  # PEFT's rule for keys of patterns: `foo` does not match `barfoo`


def _refuse_unimplemented(fields: dict[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise _invalid("peft_type", "must be 'LORA'", fields.get("peft_type"))
    if fields.get("task_type") not in (None, "CAUSAL_LM"):
        raise _invalid("task_type", "must be 'CAUSAL_LM'", fields["task_type"])
    init = fields.get("init_lora_weights", True)
    if not isinstance(init, bool | str | None) or init not in _HARMLESS_INITS:
        why = (
            "it changes the base's own weights, which all adapters share. PEFT converts such an adapter to a plain "
            "one: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )
        raise _unimplemented("init_lora_weights", f"the initialisation {init!r:.40}", why)
    for name, value in fields.items():
        if name not in _READ and name not in _IGNORED and value not in (None, False, [], {}, ""):
            raise _unimplemented(name, *_FEATURES.get(name, (f"the setting {name[:80]!r}",)))


def _refuse_unactivatable(config: PeftConfig) -> None:
    """What cannot go with activation. An adapter of embeddings cannot either, which the base's modules tell."""
    if config.dora:
        raise _unimplemented("use_dora", "DoRA that is activated", "PEFT makes no such adapter")
    why = "it would change the base's answer before the invocation as well"
    if config.bias is not Bias.NONE:
        raise _unimplemented("bias", "a trained bias beside activated LoRA", why)
    if config.saved:
        raise _unimplemented("modules_to_save", "a module saved whole beside activated LoRA", why)


def _unimplemented(name: str, what: str, why: str = "it is not known to this server") -> ConfigRejected:
    return ConfigRejected(f"{what} is not supported: {why}", param=name[:80], code="unsupported_feature")


def _invalid(name: str, rule: str, found: object) -> ConfigRejected:
    return ConfigRejected(f"{name} {rule}, found {found!r:.80}", param=name)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(name, "must be true or false", value)
    return value


def _rank(value: object, name: str, limits: Limits) -> int:
    if type(value) is not int or not 1 <= value <= limits.max_rank:
        raise _invalid(name, f"must be a whole number from 1 to {limits.max_rank}", value)
    return value


def _invocation(value: object, limits: Limits) -> tuple[int, ...] | None:
    if value is None:
        return None
    most = limits.max_invocation_tokens
    if not isinstance(value, list) or not 1 <= len(value) <= most or any(type(i) is not int or i < 0 for i in value):
        raise _invalid("alora_invocation_tokens", f"must be a list of 1 to {most} token ids", value)
    return tuple(value)


def _alpha(value: object, name: str) -> Number:
    """Any finite number, as it stands: 16.5 is not cut to 16, and a negative one subtracts, as in PEFT."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX_ALPHA <= value <= _MAX_ALPHA:
        raise _invalid(name, "must be a finite number of sensible size", value)
    return value


def _layers(value: object, limits: Limits) -> tuple[int, ...]:
    if value is None:
        return ()
    layers = value if isinstance(value, list) else [value]
    if len(layers) > limits.max_patterns or any(type(i) is not int or not 0 <= i <= _MAX_LAYER for i in layers):
        raise _invalid("layers_to_transform", "must be a layer number or a list of them", value)
    return tuple(layers)


def _texts(value: object, name: str, limits: Limits) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _invalid(name, "must be a text or a list of texts", value)
    _check_count(len(texts), name, limits)
    return texts


def _mapping(fields: dict[str, Any], name: str, limits: Limits) -> list[tuple[str, object, str]]:
    """(key, value, what to call it in an error), in the order of the text."""
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise _invalid(name, "must be an object", value)
    _check_count(len(value), name, limits)
    return [(key, item, f"{name}[{key[:80]!r}]") for key, item in value.items()]


def _check_count(count: int, name: str, limits: Limits) -> None:
    if count > limits.max_patterns:
        raise ConfigRejected(
            f"{name} has {count} entries, at most {limits.max_patterns} are allowed",
            param=name,
            code="too_many_patterns",
        )


def _selection(value: object, name: str, budget: PatternBudget) -> Selection:
    if isinstance(value, str):
        return Selection(expression=compile_pattern("{}", value, name, budget))
    return Selection(names=tuple(budget.spend(text, name) for text in _texts(value, name, budget.limits)))


def _bias(value: object) -> Bias:
    if not isinstance(value, str) or value not in list(Bias):
        raise _invalid("bias", f"must be one of {', '.join(Bias)}", value)
    return Bias(value)


def _saved(value: object, budget: PatternBudget) -> tuple[str, ...]:
    """PEFT reads them both as ends of names and as expressions; of a plain name that is the same."""
    names = tuple(budget.spend(text, "modules_to_save") for text in _texts(value, "modules_to_save", budget.limits))
    for name in names:
        if not _MODULE_NAME.fullmatch(name):
            raise _invalid("modules_to_save", "must be names of modules", name)
    return names


def _base_name(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _invalid("base_model_name_or_path", "must be a text or null", value)
    return value[:500] if value else None
