"""The operations of a step behind one seam: `kernels_for(device)` says who computes them.

Every operation has a reference in plain torch, which is the truth that faster ones are tested against. Imports torch
only, and triton once a GPU asks. Shapes: T tokens of the step, H hidden, Hq query heads, Hkv key/value heads, D head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.kernels import activation, attention, draw, heads, kv, lora, norm
from tenora_engine.kernels.launch_table import load_table
from tenora_engine.model.linear import Linear, TorchLinear
from tenora_engine.model.spec import Activation


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every operation."""

    add_rms_norm: Callable[[Tensor, Tensor | None, Tensor, float], norm.Normed]
    place_heads: Callable[[Tensor, Tensor | None, heads.HeadNorms | None, kv.LayerKv, Tensor, int], None]
    prepare_attention: Callable[[attention.AttentionBatch, torch.device, torch.dtype], attention.Attention]
    gated: Callable[[Tensor, Activation], Tensor]
    make_lora_slots: Callable[[lora.LoraShape, int, torch.dtype, torch.device], lora.LoraSlots]
    prepare_lora: Callable[[Sequence[lora.Segment], torch.device], lora.AddLora]
    make_linear: Callable[[Tensor, Tensor | None], Linear]
    race: Callable[[Tensor, Tensor], Tensor]


REFERENCE = Kernels(
    add_rms_norm=norm.add_rms_norm,
    place_heads=heads.place_heads,
    prepare_attention=attention.prepare_attention,
    gated=activation.gated,
    make_lora_slots=lora.make_lora_slots,
    prepare_lora=lora.prepare_lora,
    make_linear=TorchLinear,
    race=draw.race,
)


def kernels_for(device: torch.device, num_threads: int | None = None) -> Kernels:
    """Triton on a GPU, NVIDIA's or AMD's (torch calls both cuda); elsewhere the native library where it was built, and
    without it the reference. num_threads: of the native library, torch's own number by default.

    Raises LaunchTableError."""
    if device.type == "cuda":
        from tenora_engine.kernels.on_triton import TRITON

        load_table()
        return TRITON
    from tenora_engine.cpu.native import native_for

    native = native_for(num_threads or torch.get_num_threads())
    return REFERENCE if native is None else native.kernels
