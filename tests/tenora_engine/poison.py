"""A debug allocator: what nobody has written holds NaN, and so does what was given up.

With TENORA_TEST_POISON=1 every engine of these tests runs over it (`test_poisoned`). Poisoned are blocks of the KV
cache before their first use, while they are free and cannot be found again, and when they are handed out; the null
block; host memory for swapped blocks; rows of a recorded pass that the step has not, and all of them between two steps;
an adapter's memory when another one gets its slot; every `torch.empty`. Whoever reads any of it says NaN, or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from tenora_engine.assemble import Engine
from tenora_engine.block_copies import BlockCopies
from tenora_engine.cpu.recorded import RecordedDecoder, Recording
from tenora_engine.kernels.kv import LARGEST
from tenora_engine.kernels.lora_slots import Placed, TableSlots
from tenora_engine.scheduler import Plan

WANTED: Final = os.environ.get("TENORA_TEST_POISON") == "1"


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Of torch and of everything that is no block."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # the default, where algorithms are deterministic
    with pytest.MonkeyPatch.context() as patch:
        _patch(patch)
        yield
    torch.use_deterministic_algorithms(False)


def _patch(patch: pytest.MonkeyPatch) -> None:
    stand_in, layers, install = Recording.stand_in, RecordedDecoder.layers, TableSlots.install

    def kept_stand_in(self: Recording, dtype: torch.dtype, *shape: int) -> Tensor:
        rows: Any = stand_in(self, dtype, *shape)
        self.__dict__.setdefault("memories", []).append(rows._buffer.memory)
        return rows

    def poisoned_layers(self: RecordedDecoder, *args: Any) -> Tensor:
        for memory in vars(self._recording)["memories"]:
            memory.fill_(0xFF)  # NaN in fp32 and bf16
        return layers(self, *args)

    def poisoned_install(self: TableSlots, slot: int, placed: Placed) -> None:
        for tensor in self._placed[slot]:
            tensor.fill_(float("nan"))
        install(self, slot, placed)

    patch.setattr(Recording, "stand_in", kept_stand_in)
    patch.setattr(RecordedDecoder, "layers", poisoned_layers)
    patch.setattr(TableSlots, "install", poisoned_install)


class PoisonedBlocks:
    """Between a plan's swaps out, which still read what is given up, and all else that it does."""

    def __init__(self, engine: Engine) -> None:
        self._cache = engine.cache
        self._pages = [pages for layer in engine.executor._runner._cache for pages in layer.pages]
        self._copies = engine.executor._copies
        self._handed_out: list[int] = []  # since the last launch
        self._blocks: dict[int, list[int]] = {}  # to be poisoned, by step
        _poison(self._pages, range(engine.cache.pool.num_blocks + 1))
        allocate, launch = engine.cache.allocate, engine.executor.launch

        def noting_allocate(count: int, tenant: str) -> list[int]:
            blocks = allocate(count, tenant)
            self._handed_out += blocks
            return blocks

        def noting_launch(plan: Plan) -> Any:
            self._blocks[plan.number] = self._handed_out + self._lost()
            self._handed_out = []
            return launch(plan)

        patched: Any = engine
        patched.cache.allocate, patched.executor.launch, patched.executor._copies = noting_allocate, noting_launch, self

    def run(self, plan: Plan) -> None:
        """In place of the executor's copies, on its thread."""
        copies: BlockCopies = self._copies
        copies.run(replace(plan, swap_in=(), copies=()))
        _poison(self._pages, self._blocks.pop(plan.number))
        copies.run(replace(plan, swap_out=()))

    def _lost(self) -> list[int]:
        """Free, and nobody can find what is in them."""
        return [block for block in self._cache.pool._free if block not in self._cache._key_of]


@torch.inference_mode()
def _poison(pages: Sequence[Tensor], blocks: Sequence[int]) -> None:
    index = torch.tensor(list(blocks), dtype=torch.int64)
    for tensor in pages:
        if tensor.dtype in LARGEST:  # their scales are NaN
            tensor.view(torch.uint8)[index] = 0x7F
        else:
            tensor[index] = float("nan")
