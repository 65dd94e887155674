"""Moves blocks of the KV cache: out to host memory and back, and from one block to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tenora_engine.kernels.kv import LayerKv
from tenora_engine.scheduler import Plan


class BlockCopies:
    """`num_host_blocks` blocks of host memory, numbered from 1 as those of the device; pinned beside a GPU, which then
    copies in the order of its own work and lets nobody wait."""

    def __init__(self, cache: Sequence[LayerKv], num_host_blocks: int) -> None:
        self._device = [pages for layer in cache for pages in layer.pages]
        self._host = [_host_pages(pages, num_host_blocks) for pages in self._device if num_host_blocks]

    @torch.inference_mode()
    def run(self, plan: Plan) -> None:
        """All copies of a plan. Doing it twice changes nothing, as long as nothing was computed in between."""
        if plan.swap_out:
            _copy(self._device, self._host, plan.swap_out)
        if plan.swap_in:
            _copy(self._host, self._device, ((swap.host, swap.device) for swap in plan.swap_in))
        if plan.copies:
            _copy(self._device, self._device, plan.copies)


def _host_pages(pages: Tensor, num_blocks: int) -> Tensor:
    return torch.empty((num_blocks + 1, *pages.shape[1:]), dtype=pages.dtype, pin_memory=pages.is_cuda)


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor], blocks: Iterable[tuple[int, int]]) -> None:
    pairs = list(blocks)
    for source, target in zip(sources, targets, strict=True):
        for source_block, target_block in pairs:
            target[target_block].copy_(source[source_block], non_blocking=True)
