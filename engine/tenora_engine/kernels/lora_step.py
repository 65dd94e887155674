"""A step's segments on the device: cut once, copied once, used by every layer.

For a CUDA graph the tables have a fixed size (`Capacity`) and place, which the launches in the graph read anew at each
replay: `refill` puts another step there. Grids cover the capacity, and what a step leaves unused of it is empty tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tenora_engine.kernels.lora import Segment
from tenora_engine.kernels.lora_launch import DECODE_HEIGHT, tile_height
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_tiles import Tiles, cut

# Adapters that the rows of a graph use, on average: one request may add several up.
_USES_PER_ROW: Final = 4


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest step of decoding that a graph is made for."""

    num_rows: int
    rank: int  # of an adapter in one slice

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Of their ranks `segments` do not tell."""
        uses = sum(segment.end - segment.begin for segment in segments)
        return uses <= _USES_PER_ROW * self.num_rows and all(segment.end <= self.num_rows for segment in segments)


class LoraStep:
    """`tiles`, `pieces` (int32, four a row) and `scales` (fp32) as in `lora_tiles`, in one piece of memory."""

    def __init__(self, segments: Sequence[Segment], device: torch.device, capacity: Capacity | None = None) -> None:
        self._capacity = capacity
        if capacity is None:
            self.height = tile_height(sum(segment.end - segment.begin for segment in segments))
            cut_up = self._cut(segments)
            self.num_tiles, self.num_pieces = len(cut_up.tiles), len(cut_up.pieces)
            self.num_scratch_rows = cut_up.num_scratch_rows
        else:
            self.height = DECODE_HEIGHT
            cut_up = self._cut(segments)
            self.num_tiles = capacity.num_rows
            self.num_pieces = self.num_scratch_rows = _USES_PER_ROW * capacity.num_rows
        pieces, scales = 4 * self.num_tiles, 4 * (self.num_tiles + self.num_pieces)
        self._memory = torch.empty(scales + self.num_pieces, dtype=torch.int32, device=device)
        self.tiles = self._memory[:pieces]
        self.pieces = self._memory[pieces:scales]
        self.scales = self._memory[scales:].view(torch.float32)
        self._copy(cut_up)

    def refill(self, segments: Sequence[Segment]) -> None:
        """Another step for the launches made so far. Raises ValueError beyond the capacity."""
        if self._capacity is None or not self._capacity.holds(segments):
            raise ValueError(f"segments {segments} for tables of {self._capacity}")
        self._copy(self._cut(segments))

    def touches(self, slots: TableSlots) -> bool:
        """Whether any of the step's adapters changes this layer; a graph's may, at one of its replays."""
        used = self._slots
        return self._capacity is not None or bool(slots.ranks[used].any() or slots.affine[used].any())

    def largest_rank(self, slots: TableSlots) -> int:
        """Of the step's adapters in this layer, its slices together."""
        if self._capacity is not None:
            return self._capacity.rank * len(slots.shape.slices)
        return int(slots.ranks[self._slots].sum(axis=1).max(initial=0))

    def largest_slice_rank(self, slots: TableSlots) -> int:
        """Of the step's adapters in one slice of this layer."""
        if self._capacity is not None:
            return self._capacity.rank
        return int(slots.ranks[self._slots].max(initial=0))

    def _cut(self, segments: Sequence[Segment]) -> Tiles:
        self.num_rows = max((segment.end for segment in segments), default=0)  # as far as adapters reach
        self._slots = sorted({segment.slot for segment in segments})
        return cut(segments, self.height)

    def _copy(self, cut_up: Tiles) -> None:
        """One copy to the device that nobody waits for."""
        words = np.zeros(len(self._memory), dtype=np.int32)
        pieces, scales = len(self.tiles), len(self.tiles) + len(self.pieces)
        words[: cut_up.tiles.size] = cut_up.tiles.ravel()
        words[pieces : pieces + cut_up.pieces.size] = cut_up.pieces.ravel()
        words[scales : scales + len(cut_up.scales)] = cut_up.scales.view(np.int32)
        packed = torch.from_numpy(words)
        if self._memory.is_cuda:
            packed = packed.pin_memory()
        self._memory.copy_(packed, non_blocking=True)
