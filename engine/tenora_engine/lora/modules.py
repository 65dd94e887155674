"""From an adapter's tensors to what each module of the base adds: in the form of `kernels.lora`, on the host.

What an adapter brings whole becomes the difference to what the base has, so that it is served in one batch with others:

    a trained bias b'         y += b' - b
    a trained norm w'         y += (w' / w - 1) y,  y = w * x / |x| being the base's output
    a trained head W'         y += (W' - W) x,      as LoRA of A = 1 and B = W' - W
    a trained embedding E'    y += E'[token] - E[token],  as LoRA of A = E' - E and B = 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenora_adapters.base import EMBEDDING, HEAD, BaseModel
from tenora_adapters.manifest import Manifest, ModuleLora
from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.dora import BaseWeights, gain_and_offset, row_scale
from tenora_engine.lora.weights import ModuleWeights, UnknownModule


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """What adapters are measured against."""

    base: BaseModel
    weights: BaseWeights
    norm_offset: float  # what the base adds to the weights of its norms

    def of(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> dict[str, ModuleWeights]:
        """By the module's path. Raises AdapterUnavailable, UnknownModule, and KeyError where a tensor is missing."""
        modules = {lora.module: self._lora(lora, tensors) for lora in manifest.modules}
        for item in manifest.replaced:
            module, _, kind = item.parameter.rpartition(".")
            value = _finite(tensors[item.tensor], item.parameter).float()
            own = self.weights.parameter(item.parameter)
            if value.shape != own.shape:
                raise AdapterUnavailable(f"the adapter's {item.parameter} does not have the base's shape")
            if kind == "bias":
                modules[module] = _with_bias(modules.get(module), value - own, self.base.linears[module].in_features)
            elif module == HEAD:
                modules[module] = ModuleWeights(torch.eye(own.shape[1]), value - own, 1.0)
            elif module == EMBEDDING:
                modules[module] = ModuleWeights((value - own).t(), torch.eye(own.shape[1]), 1.0)
            else:
                modules[module] = self._norm(module, value, own)
        return modules

    def _lora(self, lora: ModuleLora, tensors: Mapping[str, Tensor]) -> ModuleWeights:
        a, b = _finite(tensors[lora.lora_a], lora.module), _finite(tensors[lora.lora_b], lora.module)
        try:
            shape = self.base.shape_of(lora.module)
        except KeyError as error:
            raise UnknownModule(lora.module) from error
        if a.shape != (lora.rank, shape.in_features) or b.shape != (shape.out_features, lora.rank):
            raise AdapterUnavailable(f"the adapter's weights of {lora.module} do not have the base's shape")
        if lora.dora_magnitude is None:
            return ModuleWeights(a, b, lora.scaling)
        magnitude = tensors[lora.dora_magnitude]
        if magnitude.shape != (shape.out_features,):
            raise AdapterUnavailable(f"the adapter's magnitudes of {lora.module} do not have the base's shape")
        weight = self.weights.parameter(f"{lora.module}.weight")
        if lora.module == EMBEDDING:  # a token's row is its output: what is scaled are the columns
            weight = weight.t()
        scale = _finite(row_scale(weight, a, b, lora.scaling, magnitude), f"row scale of {lora.module}")
        affine = gain_and_offset(scale, self.weights.bias(lora.module))
        return ModuleWeights(a, b.float() * scale[:, None], lora.scaling, affine)

    def _norm(self, module: str, value: Tensor, own: Tensor) -> ModuleWeights:
        value, own = value + self.norm_offset, own + self.norm_offset
        if bool(((own == 0) & (value != 0)).any()):
            raise AdapterUnavailable(f"{module} has a weight of 0 in the base, to which the adapter gives another")
        gain = torch.where(own == 0, 0.0, value / own - 1)
        return _nothing(len(own), len(own), torch.stack([gain, torch.zeros_like(gain)]))


def _with_bias(weights: ModuleWeights | None, change: Tensor, in_features: int) -> ModuleWeights:
    """`weights`, with `change` added to the bias."""
    affine = torch.stack([torch.zeros_like(change), change])
    if weights is None:
        return _nothing(in_features, len(change), affine)
    return replace(weights, affine=affine if weights.affine is None else weights.affine + affine)


def _nothing(in_features: int, out_features: int, affine: Tensor) -> ModuleWeights:
    """No product, but a gain and an offset."""
    return ModuleWeights(torch.empty(0, in_features), torch.empty(out_features, 0), 1.0, affine)


def _finite(values: Tensor, what: str) -> Tensor:
    if not bool(values.isfinite().all()):
        raise AdapterUnavailable(f"the adapter's weights of {what} hold NaN or infinity")
    return values
