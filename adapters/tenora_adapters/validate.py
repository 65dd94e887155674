"""From a config and a weights file to a manifest: what the config implies must be exactly what the file holds."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tenora_adapters.base import EMBEDDING, BaseModel
from tenora_adapters.errors import BaseRejected, ConfigRejected, WeightsRejected
from tenora_adapters.header import read_header
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.manifest import (
    Manifest,
    ModuleLora,
    TensorEntry,
    Warning,
    adapter_digest,
)
from tenora_adapters.package import StagedFiles
from tenora_adapters.peft_config import PeftConfig, parse_config
from tenora_adapters.replaced import Whole, possible_copies, resolve_replaced
from tenora_adapters.targets import PREFIX, Target, resolve_targets

_SHOWN = 5  # names listed in one message


@dataclass(frozen=True)
class Validated:
    manifest: Manifest
    base: BaseModel
    config_bytes: bytes
    weights: Path


def validate_package(
    files: StagedFiles,
    base: BaseModel,
    limits: Limits = DEFAULT_LIMITS,
    accepted_bases: Collection[str] | None = None,
    *,
    base_confirmed: bool = False,
) -> Validated:
    """Check everything that can be known without reading the tensors. Raises a child of AdapterRejected.

    `accepted_bases`: the values of `base_model_name_or_path` that the operator takes for this base (ADP-13). Any
    other is then refused, and none at all unless `base_confirmed`: the uploader's word that this is the base. Where
    the operator keeps no such list (None), the name is only reported, and names and shapes decide. The name is
    compared, never opened.
    """
    with files.config.open("rb") as file:
        config_bytes = file.read(limits.max_config_bytes + 1)
    config = parse_config(config_bytes, limits)
    warnings = _check_base(config, accepted_bases, confirmed=base_confirmed)
    targets = resolve_targets(config, base, limits)
    if config.invocation is not None:
        warnings.append(_check_invocation(config.invocation, {target.module for target in targets.modules}, base))
    with files.weights.open("rb") as file:
        size = files.weights.stat().st_size
        header = read_header(file, size, limits)
        file.seek(0)
        weights_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    replaced = resolve_replaced(config, base, {target.module for target in targets.modules}, limits)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    copies = _copies(tensors, base, replaced.parameters)
    modules = _match(targets.modules, (*replaced.parameters, *copies), tensors, base, config.dora)
    warnings += (*targets.warnings, *replaced.warnings)
    if replaced.parameters:
        names = [whole.replacement.parameter for whole in replaced.parameters]
        warnings.append(
            Warning("replaces_base", f"{len(names)} parameters take the place of the base's: {_listed(names)}")
        )
    if all(module.scaling == 0 for module in modules) and not config.dora and not replaced.parameters:
        warnings.append(Warning("no_effect", "lora_alpha is 0: the adapter answers as the base model does"))
    config_sha256 = hashlib.sha256(config_bytes).hexdigest()
    manifest = Manifest(
        schema=2 if replaced.parameters or copies or modules[0].module == EMBEDDING else 1,
        digest=adapter_digest(config_sha256, weights_sha256),
        base_fingerprint=base.fingerprint,
        config_sha256=config_sha256,
        weights_sha256=weights_sha256,
        weights_bytes=size,
        modules=modules,
        tensors=header.tensors,
        rslora=config.rslora,
        dora=config.dora,
        alora_invocation=config.invocation,
        warnings=tuple(warnings),
        replaced=tuple(whole.replacement for whole in replaced.parameters),
        copies=tuple(whole.replacement for whole in copies),
    )
    return Validated(manifest, base, config_bytes, files.weights)


def _check_base(config: PeftConfig, accepted: Collection[str] | None, *, confirmed: bool) -> list[Warning]:
    named = repr(config.base_name) if config.base_name else "no base model"
    if accepted is None:
        message = f"the config names {named}; that this is the served base was judged by module names and shapes only"
        return [Warning("base_unverified", message)]
    if config.base_name in accepted:
        return []
    if config.base_name is None and confirmed:
        message = "the config names no base model; that it is this one was confirmed by who uploaded it"
        return [Warning("base_confirmed", message)]
    raise BaseRejected(
        f"the adapter's config names {named}; this base accepts {', '.join(map(repr, sorted(accepted)))}",
        param="base_model_name_or_path",
        code="base_unconfirmed" if config.base_name is None else None,
    )


def _check_invocation(invocation: tuple[int, ...], modules: Collection[str], base: BaseModel) -> Warning:
    """What the report says of an activated LoRA. Raises ConfigRejected."""
    if max(invocation) >= base.vocab_size:
        raise ConfigRejected(
            f"alora_invocation_tokens holds the token id {max(invocation)}; the base's go up to {base.vocab_size - 1}",
            param="alora_invocation_tokens",
        )
    if EMBEDDING in modules:
        raise ConfigRejected(
            "an activated adapter of the embedding is not supported: PEFT makes no such adapter",
            param="target_modules",
            code="unsupported_feature",
        )
    ids = ", ".join(map(str, invocation))
    message = f"applies from the last occurrence of the tokens {ids} in a prompt on; without them the base answers"
    return Warning("activated", message)


def _copies(tensors: dict[str, TensorEntry], base: BaseModel, replaced: Collection[Whole]) -> list[Whole]:
    """The copies of the base's own embeddings in the file; `numeric` tells whether they are. Raises WeightsRejected."""
    known = {whole.replacement.tensor for whole in replaced}
    copies = [copy for copy in possible_copies(base) if copy.replacement.tensor in tensors.keys() - known]
    for copy in copies:
        name, module = copy.replacement.tensor, copy.replacement.parameter.removesuffix(".weight")
        shape = tensors[name].shape
        if len(shape) == 2 and shape[0] != base.vocab_size and shape[1] == base.hidden_size:
            raise WeightsRejected(
                f"{name}: the vocabulary was resized to {shape[0]} tokens, the base has {base.vocab_size}; "
                "an adapter cannot add tokens to it",
                param=name,
                code="resized_vocabulary",
            )
        if module not in base.embeddings:
            raise WeightsRejected(
                f"{name} is a copy of the base's weights, which this server cannot compare with its own; save the "
                "adapter with save_pretrained(..., save_embedding_layers=False)",
                param=name,
                code="unexpected_tensors",
            )
    return copies


def _match(
    targets: tuple[Target, ...],
    wholes: tuple[Whole, ...],
    tensors: dict[str, TensorEntry],
    base: BaseModel,
    dora: bool,
) -> tuple[ModuleLora, ...]:
    """Every implied tensor is there in the implied shape, and no other. Raises WeightsRejected."""
    modules = []
    expected: dict[str, tuple[int, ...]] = {}
    for target in targets:
        name = f"{PREFIX}{target.module}"
        a, b = ("A.weight", "B.weight") if target.module != EMBEDDING else ("embedding_A", "embedding_B")
        lora = ModuleLora(
            target.module,
            target.rank,
            target.scaling,
            f"{name}.lora_{a}",
            f"{name}.lora_{b}",
            f"{name}.lora_magnitude_vector" if dora else None,
        )
        linear = base.shape_of(target.module)
        expected[lora.lora_a] = (target.rank, linear.in_features)
        expected[lora.lora_b] = (linear.out_features, target.rank)
        if lora.dora_magnitude is not None:
            expected[lora.dora_magnitude] = (linear.out_features,)
        modules.append(lora)
    expected.update({whole.replacement.tensor: whole.shape for whole in wholes})
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if missing or extra:
        parts = []
        if extra:
            parts.append(f"{len(extra)} tensors that the config does not imply: {_listed(extra)}")
        if missing:
            parts.append(f"lacks {len(missing)} that it does: {_listed([f'{n} {list(expected[n])}' for n in missing])}")
        raise WeightsRejected(
            "the weights file holds " + " and ".join(parts) if extra else "the weights file " + parts[0],
            param=(extra or missing)[0],
            code="unexpected_tensors" if extra else "missing_tensors",
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsRejected(
                f"{name}: expected the shape {list(shape)}, found {list(tensors[name].shape)}",
                param=name,
                code="wrong_shape",
            )
    return tuple(modules)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
