"""Adapters in a GPU's memory: each at its real rank in memory of its own, and a table of where they are.

The kernels read addresses and ranks from the table, which never moves: a slot can change its content between two
replays of a CUDA graph. An adapter of rank 8 costs rank-8 memory, whatever lies in the other slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tenora_engine.kernels.lora import LoraPair, LoraShape
from tenora_engine.kernels.lora_tiles import Ints


@dataclass(frozen=True, slots=True)
class Columns:
    """The layer's outputs in chunks of at most `width` columns, none across two slices."""

    width: int
    table: Tensor  # int32 [num_chunks, 5]: slice, first column, end column, the slice's first column, its size

    @property
    def num_chunks(self) -> int:
        return self.table.shape[0]


@dataclass(frozen=True, slots=True)
class Placed:
    """One layer's pair in the device's memory, and what a slot's row has to say of it."""

    row: list[int]
    ranks: tuple[int, ...]  # of each slice
    tensors: tuple[Tensor, ...]  # what the row's addresses point to


class TableSlots:
    """The adapters of one layer by slot.

    `table`: int64 [num_slots, 3 + 3 S] for S slices. A slot's row is the address of its A, its rank, the address of its
    gain and offset (0: it has none), and for each slice the address of its B, the first of its ranks in A, and how many
    they are. All zero: nothing to add. A lies as [rank, in_features], of an embedding as [in_features, rank]; B of each
    slice as [rank, size].
    """

    def __init__(self, shape: LoraShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.dtype = dtype
        self.table = torch.zeros(num_slots, 3 + 3 * len(shape.slices), dtype=torch.int64, device=device)
        # The host's copy: of each slice, and whether there is more than the product.
        self.ranks = np.zeros((num_slots, len(shape.slices)), dtype=np.int64)
        self.affine = np.zeros(num_slots, dtype=bool)
        # Whether every row and every chunk begins at a multiple of 16 elements, so that loads can be wide.
        self.aligned = shape.in_features % 16 == 0 and all(size % 16 == 0 for size in shape.slices)
        self._placed: list[tuple[Tensor, ...]] = [()] * num_slots  # what the addresses point to
        self._columns: dict[int, Columns] = {}

    def place(self, pair: LoraPair | None) -> Placed:
        """Raises ValueError."""
        row = [0] * self.table.shape[1]
        if pair is None:
            return Placed(row, (0,) * len(self.shape.slices), ())
        self._check(pair)
        a = pair.a if self.shape.is_embedding else pair.a.t()
        placed = (self._place(a, self.dtype), *self._slices(pair))
        row[:2] = [placed[0].data_ptr(), pair.a.shape[1]]
        first = 0
        for index, (b, rank) in enumerate(zip(placed[1:], pair.ranks, strict=True)):
            row[3 + 3 * index : 6 + 3 * index] = [b.data_ptr(), first, rank]
            first += rank
        if pair.affine is not None:
            placed = (*placed, self._place(pair.affine, torch.float32))
            row[2] = placed[-1].data_ptr()
        return Placed(row, pair.ranks, placed)

    def install(self, slot: int, placed: Placed) -> None:
        """Replace what lies in a slot. No step that uses the slot may be under way."""
        self.table[slot].copy_(self._on_host(torch.tensor(placed.row)), non_blocking=True)
        self.ranks[slot] = placed.ranks
        self.affine[slot] = placed.row[2] != 0
        self._placed[slot] = placed.tensors

    def put(self, slot: int, pair: LoraPair | None) -> None:
        """Raises ValueError."""
        self.install(slot, self.place(pair))

    def columns(self, width: int) -> Columns:
        if width not in self._columns:
            rows, start = [], 0
            for index, size in enumerate(self.shape.slices):
                for begin in range(start, start + size, width):
                    rows.append((index, begin, min(begin + width, start + size), start, size))
                start += size
            table = torch.tensor(rows, dtype=torch.int32).to(self.table.device)
            self._columns[width] = Columns(width, table)
        return self._columns[width]

    def _slices(self, pair: LoraPair) -> list[Tensor]:
        """B of each slice, [rank, size]: the blocks on the diagonal of `pair.b`, without the zeros around them."""
        row = column = 0
        blocks = []
        for rank, size in zip(pair.ranks, self.shape.slices, strict=True):
            blocks.append(self._place(pair.b[row : row + rank, column : column + size], self.dtype))
            row, column = row + rank, column + size
        return blocks

    def _place(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """A dense copy on the device, in the order of the current stream: nobody waits for it."""
        place = torch.empty(values.shape, dtype=dtype, device=self.table.device)
        return place.copy_(self._on_host(values.contiguous()), non_blocking=True)

    def _on_host(self, values: Tensor) -> Tensor:
        """Where a copy to the device does not make the host wait; the allocator keeps it until the copy is done."""
        return values.pin_memory() if self.table.is_cuda and not values.is_cuda else values

    def _check(self, pair: LoraPair) -> None:
        rank = sum(pair.ranks)
        if pair.a.shape != (self.shape.in_features, rank) or pair.b.shape != (rank, self.shape.out_features):
            raise ValueError(f"LoRA of shapes {tuple(pair.a.shape)}, {tuple(pair.b.shape)} for a layer {self.shape}")
        if len(pair.ranks) != len(self.shape.slices):
            raise ValueError(f"LoRA of {len(pair.ranks)} slices for a layer {self.shape}")
        if pair.a.dtype != self.dtype or pair.b.dtype != self.dtype:
            raise ValueError(f"LoRA in {pair.a.dtype}, {pair.b.dtype} for a layer in {self.dtype}")
        affine = pair.affine
        if affine is not None and (affine.shape != (2, self.shape.out_features) or affine.dtype != torch.float32):
            raise ValueError(f"LoRA with gain and offset {affine.dtype} {tuple(affine.shape)} for a layer {self.shape}")


def share_ranks(layers: Iterable[TableSlots]) -> Ints:
    """The ranks of many layers as one array, of which each keeps its part: int64 [layers, num_slots, most slices]."""
    tables = list(layers)
    most = max(table.ranks.shape[1] for table in tables)
    shared = np.zeros((len(tables), tables[0].ranks.shape[0], most), dtype=np.int64)
    for part, table in zip(shared, tables, strict=True):
        part[:, : table.ranks.shape[1]] = table.ranks
        table.ranks = part[:, : table.ranks.shape[1]]
    return shared
