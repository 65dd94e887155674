"""An adapter's weights in the decoder's layout, and the slots that hold them. Imports torch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from tenora_engine.kernels import Kernels
from tenora_engine.kernels.lora import LoraPair, LoraShape, LoraSlots
from tenora_engine.model.decoder import Adapters, LayerSlots, NormSlots
from tenora_engine.model.spec import ModelSpec


class UnknownModule(Exception):
    """An adapter names a module that the decoder cannot adapt."""


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """LoRA of one linear layer: y += scaling * B (A x), and gain * y + offset where there is more to it."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scaling: float
    affine: Tensor | None = None  # fp32 [2, out_features]: gain, offset


@dataclass(frozen=True, slots=True)
class AdapterNorms:
    """What an adapter changes in the norms of one decoder layer; None where it leaves one alone."""

    attention: LoraPair | None = None
    attention_out: LoraPair | None = None
    mlp: LoraPair | None = None
    mlp_out: LoraPair | None = None


@dataclass(frozen=True, slots=True)
class AdapterLayer:
    """The pairs of one decoder layer; None where the adapter leaves a projection alone."""

    qkv: LoraPair | None = None
    output: LoraPair | None = None
    gate_up: LoraPair | None = None
    down: LoraPair | None = None
    norms: AdapterNorms = AdapterNorms()


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    layers: tuple[AdapterLayer, ...]
    lm_head: LoraPair | None = None
    embedding: LoraPair | None = None
    final_norm: LoraPair | None = None
    invocation: tuple[int, ...] | None = None  # tokens that activate it; None: it applies to all of a prompt

    @property
    def pairs(self) -> list[LoraPair | None]:
        """All of them, in a fixed order: the norms come last."""
        layers = [pair for layer in self.layers for pair in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*layers, self.lm_head, self.embedding, *self.norms]

    @property
    def norms(self) -> list[LoraPair | None]:
        norms = [layer.norms for layer in self.layers]
        of_layers = [pair for n in norms for pair in (n.attention, n.attention_out, n.mlp, n.mlp_out)]
        return [*of_layers, self.final_norm]

    @property
    def changes_norms(self) -> bool:
        return any(pair is not None for pair in self.norms)

    @property
    def num_bytes(self) -> int:
        """On the host. On a device the same weights take no more."""
        tensors = [tensor for pair in self.pairs if pair is not None for tensor in (pair.a, pair.b, pair.affine)]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@dataclass(frozen=True, slots=True)
class _Modules:
    """The modules that one (fused) projection is made of, and its shape."""

    names: tuple[str, ...]
    shape: LoraShape


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """An adapter in the device's memory, for a slot to take."""

    pairs: Sequence[Any]  # as `AdapterWeights.pairs`
    changes_norms: bool


LM_HEAD: Final = "lm_head"
EMBEDDING: Final = "model.embed_tokens"
FINAL_NORM: Final = "model.norm"


def _qkv(spec: ModelSpec) -> _Modules:
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return _Modules(names, LoraShape(spec.hidden_size, (spec.q_size, spec.kv_size, spec.kv_size)))


def _output(spec: ModelSpec) -> _Modules:
    return _Modules(("self_attn.o_proj",), LoraShape(spec.q_size, (spec.hidden_size,)))


def _gate_up(spec: ModelSpec) -> _Modules:
    sizes = (spec.intermediate_size, spec.intermediate_size)
    return _Modules(("mlp.gate_proj", "mlp.up_proj"), LoraShape(spec.hidden_size, sizes))


def _down(spec: ModelSpec) -> _Modules:
    return _Modules(("mlp.down_proj",), LoraShape(spec.intermediate_size, (spec.hidden_size,)))


def layer_shapes(spec: ModelSpec) -> list[LoraShape]:
    """Of an `AdapterLayer`'s pairs in their order, the norms left out."""
    return [modules.shape for modules in (_qkv(spec), _output(spec), _gate_up(spec), _down(spec))]


def _lm_head(spec: ModelSpec) -> _Modules:
    return _Modules((LM_HEAD,), LoraShape(spec.hidden_size, (spec.vocab_size,)))


def _embedding(spec: ModelSpec) -> _Modules:
    return _Modules((EMBEDDING,), LoraShape(spec.vocab_size, (spec.hidden_size,), is_embedding=True))


def _norm(spec: ModelSpec, *names: str) -> _Modules:
    return _Modules(names, LoraShape(spec.hidden_size, (spec.hidden_size,) * len(names)))


def _norms(spec: ModelSpec) -> list[_Modules]:
    """A layer's norms, in the order of `AdapterNorms`; of no module where the model has none."""
    after, before_mlp = "post_attention_layernorm", "pre_feedforward_layernorm"
    if not spec.output_norms:
        return [_norm(spec, "input_layernorm"), _norm(spec), _norm(spec, after), _norm(spec)]
    names = ("input_layernorm", after, before_mlp, "post_feedforward_layernorm")
    return [_norm(spec, name) for name in names]


def arrange(modules: Mapping[str, ModuleWeights], spec: ModelSpec, dtype: torch.dtype) -> AdapterWeights:
    """`modules` by path ("model.layers.0.self_attn.q_proj"), fused as the base is. Raises UnknownModule."""
    remaining = dict(modules)

    def fuse(prefix: str, fused: _Modules) -> LoraPair | None:
        return _fuse([remaining.pop(f"{prefix}{name}", None) for name in fused.names], fused.shape, dtype)

    layers = []
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}."
        layers.append(
            AdapterLayer(
                qkv=fuse(prefix, _qkv(spec)),
                output=fuse(prefix, _output(spec)),
                gate_up=fuse(prefix, _gate_up(spec)),
                down=fuse(prefix, _down(spec)),
                norms=AdapterNorms(*(fuse(prefix, norm) for norm in _norms(spec))),
            )
        )
    lm_head, embedding = fuse("", _lm_head(spec)), fuse("", _embedding(spec))
    final_norm = fuse("", _norm(spec, FINAL_NORM))
    if remaining:
        raise UnknownModule(sorted(remaining)[0])
    return AdapterWeights(tuple(layers), lm_head, embedding, final_norm)


def _fuse(parts: Sequence[ModuleWeights | None], shape: LoraShape, dtype: torch.dtype) -> LoraPair | None:
    """One pair for modules that share their input: the A side by side, the B on a diagonal, scaling folded into B."""
    present = [weights for weights in parts if weights is not None]
    if not present:
        return None
    a = torch.cat([weights.a for weights in present]).to(dtype).t().contiguous()
    b = torch.zeros(a.shape[1], shape.out_features, dtype=dtype)
    ranks = tuple(0 if weights is None else weights.a.shape[0] for weights in parts)
    affine = torch.zeros(2, shape.out_features)
    row = column = 0
    for weights, rank, size in zip(parts, ranks, shape.slices, strict=True):
        if weights is not None:
            b[row : row + rank, column : column + size] = (weights.b.float() * weights.scaling).t()
            if weights.affine is not None:
                affine[:, column : column + size] = weights.affine
        row, column = row + rank, column + size
    return LoraPair(a, b, ranks, affine if any(weights.affine is not None for weights in present) else None)


class DeviceSlots:
    """The adapters that a step can use, by slot index. `adapters` is what the decoder reads; it never moves."""

    def __init__(
        self, num_slots: int, spec: ModelSpec, kernels: Kernels, dtype: torch.dtype, device: torch.device
    ) -> None:
        def make(fused: _Modules) -> LoraSlots:
            return kernels.make_lora_slots(fused.shape, num_slots, dtype, device)

        layers = [
            LayerSlots(
                make(_qkv(spec)),
                make(_output(spec)),
                make(_gate_up(spec)),
                make(_down(spec)),
                NormSlots(*map(make, _norms(spec))),
            )
            for _ in range(spec.num_layers)
        ]
        self.adapters = Adapters(layers, make(_lm_head(spec)), make(_embedding(spec)), make(_norm(spec, FINAL_NORM)))
        of_layers = chain.from_iterable(layer.linears for layer in layers)
        norms = [layer.norms for layer in layers]
        of_norms = chain.from_iterable((n.attention, n.attention_out, n.mlp, n.mlp_out) for n in norms)
        self._slots: list[LoraSlots] = [  # in the order of `AdapterWeights.pairs`
            *of_layers,
            self.adapters.lm_head,
            self.adapters.embedding,
            *of_norms,
            self.adapters.final_norm,
        ]
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._nothing = PlacedAdapter([slots.place(None) for slots in self._slots], changes_norms=False)

    def place(self, weights: AdapterWeights) -> PlacedAdapter:
        """Copy an adapter to the device, on a stream of its own: what `install` takes. Returns when it is there; may be
        called on any thread."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            placed = [slots.place(pair) for slots, pair in zip(self._slots, weights.pairs, strict=True)]
        if self._stream is not None:
            self._stream.synchronize()
        return PlacedAdapter(placed, weights.changes_norms)

    def install(self, slot: int, placed: PlacedAdapter) -> None:
        """Replace what lies in a slot. No step that uses the slot may be under way."""
        for slots, pair in zip(self._slots, placed.pairs, strict=True):
            slots.install(slot, pair)
        change = self.adapters.changing_norms
        change.add(slot) if placed.changes_norms else change.discard(slot)

    def clear(self, slot: int) -> None:
        """Give back the memory of what lies in a slot. No step that uses the slot may be under way."""
        self.install(slot, self._nothing)
