"""What is computed of each row alone: RMSNorm with the residual addition before it, and the gated activation.

The references are in `norm.py` and `activation.py`. Both are a pass over memory; sums and functions are in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.launch_table import find, target_of
from tenora_engine.kernels.norm import Normed
from tenora_engine.model.spec import Activation


@triton.jit
def add_rms_norm_kernel(
    out,  # [T, size]
    residual,  # [T, size]
    x,  # [T, size]
    x_stride,
    weight,  # fp32 [size]
    eps,
    size,
    block: tl.constexpr,
    adds: tl.constexpr,
):
    """Program (row): residual += x, where it `adds`; out = residual / sqrt(mean(residual^2) + eps) * weight."""
    columns = tl.arange(0, block)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64)
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    places = row * size + columns
    if adds:
        values += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(residual.dtype.element_ty)
        tl.store(residual + places, rounded, mask=inside)
        values = rounded.to(tl.float32)
    mean = tl.sum(values * values, 0) / size
    normed = values * tl.rsqrt(mean + eps) * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_kernel(
    out,  # [T, size]
    gate_up,  # [T, 2 size]
    size,
    block: tl.constexpr,
    is_gelu: tl.constexpr,
):
    """Program (row, block of columns): activation(gate) * up."""
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < size
    row = tl.program_id(0).to(tl.int64)
    places = gate_up + row * 2 * size + columns
    gate = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(places + size, mask=inside, other=0.0).to(tl.float32)
    if is_gelu:  # in its tanh form: tanh(u) = 2 sigmoid(2u) - 1, so that half of (1 + tanh(u)) is sigmoid(2u)
        gate *= tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))  # 2 sqrt(2 / pi)
    else:
        gate *= tl.sigmoid(gate)
    gate = gate.to(out.dtype.element_ty).to(tl.float32)  # as where the activation is an operation of its own
    tl.store(out + row * size + columns, (gate * up).to(out.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Normed:
    """x: [T, H], its rows contiguous; weight: fp32 [H]."""
    num_rows, size = x.shape
    adds = residual is not None
    if residual is None:
        residual = x
    _check(x.stride(1) == 1 and weight.is_contiguous() and (not adds or residual.is_contiguous()), x)
    _check(weight.shape == (size,) and residual.shape == x.shape and residual.dtype == x.dtype, x)
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    add_rms_norm_kernel[(num_rows,)](
        out, residual, x, x.stride(0), weight, eps, size, block=block, adds=adds, num_warps=norm_warps(block)
    )
    return Normed(out, residual)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """gate_up: [T, 2 I], contiguous; out: [T, I]."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    _check(gate_up.is_contiguous(), gate_up)
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    launch = find("gated", target_of(gate_up.device), gate_up.dtype)
    is_gelu = activation is Activation.GELU_TANH
    gated_kernel[(num_rows, triton.cdiv(size, launch["block"]))](out, gate_up, size, is_gelu=is_gelu, **launch)
    return out


def norm_warps(block: int) -> int:
    """Eight elements a thread, as far as a program may have threads for it."""
    return min(max(block // 256, 1), 16)


def _check(holds: bool, x: Tensor) -> None:
    """What the kernels take on trust. Raises ValueError."""
    if not holds:
        raise ValueError(f"tensors that do not fit x of shape {tuple(x.shape)}, strides {x.stride()} in {x.dtype}")
