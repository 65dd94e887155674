"""Correctness of every operation of the engine's kernel seam on this machine's accelerator, or on its CPU.

    make gpu-check

Each operation runs on the device in fp32 and bf16 and is compared with the same operation in float64 on the CPU. Needs
torch, safetensors and numpy only. Exit status 1 when one is wrong; the table is what belongs into `bench/results/`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.kernels import Kernels, kernels_for
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import allocate_kv, store_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.model.spec import Activation

HQ, HKV, D, HIDDEN, BLOCK = 8, 2, 64, 512, 16
QKV = LoraShape(HIDDEN, (HQ * D, HKV * D, HKV * D))
RANKS = ((1, 1, 1), (8, 8, 8), (0, 0, 0), (0, 33, 0), (64, 16, 128))  # by slot, of q, k and v
# Relative to the largest magnitude of the result: a few units in the last place, accumulated.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Make = Callable[..., Tensor]  # random values of a shape, in the dtype and on the device under test


@dataclass(frozen=True)
class Result:
    operation: str
    dtype: torch.dtype
    error: float

    @property
    def ok(self) -> bool:
        return self.error <= TOLERANCE[self.dtype]


def norm(k: Kernels, make: Make) -> Tensor:
    x, residual, weight = make(37, HIDDEN), make(37, HIDDEN), wide(make(HIDDEN))
    normed = k.add_rms_norm(x, residual, weight, 1e-5)
    return torch.cat([normed.out, normed.residual])


def wide(values: Tensor) -> Tensor:
    """In fp32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def heads(k: Kernels, make: Make, norms: bool) -> Tensor:
    """Queries, keys and values, and what of them lies in the cache."""
    placed, angles = make(37, HQ + 2 * HKV, D), wide(make(37, D // 2))
    (cache,) = allocate_kv(1, 16, BLOCK, HKV, D, placed.dtype, placed.device)
    places = torch.randperm(16 * BLOCK, generator=torch.Generator().manual_seed(1))[:37].to(placed.device)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    head_norms = HeadNorms(wide(make(D)), wide(make(D)), 1e-5) if norms else None
    k.place_heads(placed, cos_sin, head_norms, cache, places, HQ)
    return torch.cat([part.flatten() for part in (placed, cache.keys, cache.values)])


def heads_plain(k: Kernels, make: Make) -> Tensor:
    return heads(k, make, norms=False)


def heads_normed(k: Kernels, make: Make) -> Tensor:
    return heads(k, make, norms=True)


def silu(k: Kernels, make: Make) -> Tensor:
    return k.gated(make(37, 2 * HIDDEN), Activation.SILU)


def gelu(k: Kernels, make: Make) -> Tensor:
    return k.gated(make(37, 2 * HIDDEN), Activation.GELU_TANH)


def lora(k: Kernels, make: Make, num_rows: int) -> Tensor:
    """On a q/k/v layer: ranks mixed, a slot without this layer, rows without an adapter, two adapters over one segment,
    one token each, one long segment."""
    y, x = make(num_rows, sum(QKV.slices)), make(num_rows, HIDDEN)
    slots = k.make_lora_slots(QKV, len(RANKS), x.dtype, x.device)
    for slot, ranks in enumerate(RANKS):
        if any(ranks):
            blocks = [make(rank, size) for rank, size in zip(ranks, QKV.slices, strict=True)]
            slots.put(slot, LoraPair(make(HIDDEN, sum(ranks)), torch.block_diag(*blocks), ranks))
    each = [Segment(row, row + 1, row % len(RANKS), 1.0) for row in range(7, 19)]
    segments = [Segment(0, 6, 0, 0.5), *each, Segment(19, num_rows, 4, 2.0), Segment(19, num_rows, 1, -1.0)]
    k.prepare_lora(segments, x.device)(y, x, slots)
    return y


def lora_of_few(k: Kernels, make: Make) -> Tensor:
    return lora(k, make, 37)


def lora_of_many(k: Kernels, make: Make) -> Tensor:
    return lora(k, make, 700)


def attention(k: Kernels, make: Make, window: int | None) -> Tensor:
    """Two decodes and two chunks, lengths around multiples of a block, written and read through block tables."""
    contexts, lengths, blocks = (17, 33, 16, 50), (1, 1, 16, 20), ((3, 9), (1, 12, 5), (7,), (2, 4, 6, 8))
    keys, values, queries = make(100, HKV, D), make(100, HKV, D), make(sum(lengths), HQ, D)
    (cache,) = allocate_kv(1, 16, BLOCK, HKV, D, keys.dtype, keys.device)
    spans, row, token = [], 0, 0
    for context, length, table in zip(contexts, lengths, blocks, strict=True):
        rows = torch.arange(context) % 100
        places = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)])
        picked = ((rows + token) % 100).to(keys.device)
        store_kv(cache, keys[picked], values[picked], places.to(keys.device))
        spans.append(Span(row, row + length, context, table))
        row, token = row + length, token + context
    attend = k.prepare_attention(AttentionBatch(spans, BLOCK), keys.device, keys.dtype)
    return attend(queries, cache, D**-0.5, window)


def attention_full(k: Kernels, make: Make) -> Tensor:
    return attention(k, make, None)


def attention_windowed(k: Kernels, make: Make) -> Tensor:
    return attention(k, make, 19)


OPERATIONS: dict[str, Callable[[Kernels, Make], Tensor]] = {
    "add_rms_norm": norm,
    "place_heads": heads_plain,
    "place_heads, QK-norm": heads_normed,
    "gated, SiLU": silu,
    "gated, GELU": gelu,
    "lora, few rows": lora_of_few,
    "lora, many rows": lora_of_many,
    "attention": attention_full,
    "attention, window": attention_windowed,
}


def check(name: str, dtype: torch.dtype, device: torch.device) -> Result:
    def maker(as_dtype: torch.dtype, on: torch.device) -> Make:
        generator = torch.Generator().manual_seed(7)
        # Rounded to the tested dtype first, so that both sides start from the same numbers.
        return lambda *shape: torch.randn(*shape, generator=generator).to(dtype).to(on, as_dtype)

    operation = OPERATIONS[name]
    cpu = torch.device("cpu")
    want = operation(kernels_for(cpu), maker(torch.float64, cpu))
    got = operation(kernels_for(device), maker(dtype, device)).to(cpu, torch.float64)
    error = ((got - want).abs().max() / want.abs().max()).item()
    return Result(name, dtype, error if torch.isfinite(got).all() else float("inf"))


def main() -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {where}")
    results = [check(name, dtype, device) for name in OPERATIONS for dtype in TOLERANCE]
    for result in results:
        name = str(result.dtype).removeprefix("torch.")
        print(f"{'ok   ' if result.ok else 'WRONG'} {result.operation:20} {name:9} max error {result.error:.1e}")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
