"""What this machine can do at most, and what a step asks of it at least.

    python bench/limits.py

A step cannot be faster than its bytes over the rate at which memory is read, nor than its multiplications over the rate
at which this machine multiplies. Both rates are measured with torch, that is with oneDNN and MKL, over operands that no
cache holds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tenora_engine.model.spec import ModelSpec

LARGE = 512 << 20  # bytes that are read once
SIDE = 1536  # of the squares that are multiplied


@dataclass(frozen=True)
class Limits:
    bytes_per_s: float
    flops_per_s: float  # two for each number that a product adds up

    def __str__(self) -> str:
        return (
            f"memory is read at {self.bytes_per_s / 1e9:.1f} GB/s, products are made at "
            f"{self.flops_per_s / 1e9:.0f} GFLOP/s"
        )

    def seconds(self, num_bytes: float, num_flops: float) -> float:
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops_per_s)


@dataclass(frozen=True)
class Work:
    """`num_spans` sequences whose next `length` tokens follow `context - length` others."""

    name: str
    num_spans: int
    length: int
    context: int
    ranks: Sequence[int] = ()  # of the adapters, one for each sequence in turn

    @property
    def num_rows(self) -> int:
        return self.num_spans * self.length

    def num_bytes(self, spec: ModelSpec, dtype: torch.dtype) -> int:
        """Weights, keys, values and adapters, each once."""
        weights = spec.num_layers * _layer_weights(spec) + spec.vocab_size * spec.hidden_size
        kv = self.num_spans * self.context * 2 * spec.kv_size * spec.num_layers
        adapters = sum(self.ranks[: self.num_spans]) * _rank_weights(spec)
        return (weights + kv + adapters) * dtype.itemsize

    def num_flops(self, spec: ModelSpec) -> int:
        """Of the products: linear layers, the head for each sequence's last row, attention and adapters."""
        linear = self.num_rows * spec.num_layers * _layer_weights(spec)
        head = self.num_spans * spec.vocab_size * spec.hidden_size
        seen = self.num_spans * sum(range(self.context - self.length + 1, self.context + 1))
        attention = 2 * seen * spec.q_size * spec.num_layers
        adapters = self.length * sum(self.ranks[: self.num_spans]) * _rank_weights(spec)
        return 2 * (linear + head + attention + adapters)


def linear_sizes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(in, out) of a layer's projections."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return {
        "q_proj": (hidden, spec.q_size),
        "k_proj": (hidden, spec.kv_size),
        "v_proj": (hidden, spec.kv_size),
        "o_proj": (spec.q_size, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def _layer_weights(spec: ModelSpec) -> int:
    return sum(inputs * outputs for inputs, outputs in linear_sizes(spec).values())


def _rank_weights(spec: ModelSpec) -> int:
    """Of one rank of an adapter over all linear layers."""
    return spec.num_layers * sum(inputs + outputs for inputs, outputs in linear_sizes(spec).values())


def measure_limits() -> Limits:
    """With the threads that torch has."""
    matrix = torch.ones(LARGE // 4 // 4096, 4096)
    vector = torch.ones(4096)
    bytes_per_s = matrix.nbytes / _fastest(lambda: torch.mv(matrix, vector))
    rates = [2 * SIDE**3 / _fastest(_product(dtype)) for dtype in _multiplied()]
    return Limits(bytes_per_s, max(rates))


def _multiplied() -> list[torch.dtype]:
    """What this machine multiplies; without instructions for bf16, torch takes minutes for it."""
    bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return [torch.float32, torch.bfloat16] if bf16 else [torch.float32]


def _product(dtype: torch.dtype) -> Callable[[], object]:
    left, right = (torch.ones(SIDE, SIDE, dtype=dtype) for _ in range(2))
    return lambda: left @ right


def _fastest(run: Callable[[], object], times: int = 8) -> float:
    """Seconds. The fastest of several: a limit is what nothing disturbed."""

    def once() -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return min(once() for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    torch.set_num_threads(parser.parse_args().threads)
    print(measure_limits())


if __name__ == "__main__":
    main()
