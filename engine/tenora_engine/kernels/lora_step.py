"""A step's segments on the device: cut once, copied once, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tenora_engine.kernels.lora import Segment
from tenora_engine.kernels.lora_launch import tile_height
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_tiles import cut


class LoraStep:
    """`tiles`, `pieces` (int32, four a row) and `scales` (fp32) as in `lora_tiles`, in one copy to the device that
    nobody waits for."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.height = tile_height(sum(segment.end - segment.begin for segment in segments))
        self.num_rows = max(segment.end for segment in segments)  # of the step, as far as adapters reach
        self.slots = sorted({segment.slot for segment in segments})
        cut_up = cut(segments, self.height)
        self.num_tiles, self.num_pieces = len(cut_up.tiles), len(cut_up.pieces)
        self.num_scratch_rows = cut_up.num_scratch_rows
        words = np.concatenate([cut_up.tiles, cut_up.pieces], axis=None).astype(np.int32)
        packed = torch.from_numpy(np.concatenate([words, cut_up.scales.view(np.int32)]))
        if device.type == "cuda":
            packed = packed.pin_memory()
        packed = packed.to(device, non_blocking=True)
        pieces, scales = 4 * self.num_tiles, 4 * (self.num_tiles + self.num_pieces)
        self.tiles = packed[:pieces]
        self.pieces = packed[pieces:scales]
        self.scales = packed[scales:].view(torch.float32)

    def largest_rank(self, slots: TableSlots) -> int:
        """Of the step's adapters in this layer, its slices together; 0: they leave it alone."""
        return int(slots.ranks[self.slots].sum(axis=1).max(initial=0))

    def largest_slice_rank(self, slots: TableSlots) -> int:
        """Of the step's adapters in one slice of this layer."""
        return int(slots.ranks[self.slots].max(initial=0))
