"""How a step's segments are cut for a GPU: into tiles of rows that no other tile shares. numpy only.

Segments may overlap, so they are first cut at every begin and end into runs: rows with the same adapters throughout.
A run is cut into tiles of bounded height. A tile has one piece for each adapter over it, and each piece its own rows of
scratch memory, in which the product with A waits for the product with B. One tile is one program's (for each block of
outputs): where adapters add up they do so in the order of the segments, with nothing to race for.

    rows       0          5     8              20
    segments   |--- s0 ---|     |----- s2 -----|      s1, s3: two adapters in one request
               |--- s1 ---|     |----- s3 -----|
    runs       |----------|     |--------------|      rows 5 to 8 have no adapter: no tile, no program
    tiles      |--- t0 ---|     |--- t1 ---|-t2|      of at most 8 rows
    pieces     t0: s0 s1        t1: s2 s3  t2: s2 s3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tenora_engine.kernels.lora import Segment

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Ints  # [num_tiles, 4]: first row, end row, first piece, end piece
    pieces: Ints  # [num_pieces, 4]: first row, end row, slot, first row of scratch
    scales: NDArray[np.float32]  # [num_pieces]
    num_scratch_rows: int


def cut(segments: Sequence[Segment], height: int) -> Tiles:
    """Tiles of at most `height` rows. The work here is by array, never by token."""
    rows = [(segment.begin, segment.end, segment.slot) for segment in segments]
    begins, ends, slots = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    scales = np.array([segment.scale for segment in segments], dtype=np.float32)

    # Runs, and the segments over each: `over` holds them run by run, in the order they were given.
    bounds = np.unique(np.concatenate([begins, ends]))
    first_run = np.searchsorted(bounds, begins)
    segment, index = _spread(np.searchsorted(bounds, ends) - first_run)
    run = first_run[segment] + index
    over = segment[np.argsort(run, kind="stable")]
    num_over = np.bincount(run, minlength=max(len(bounds) - 1, 0))

    run, index = _spread(np.where(num_over > 0, -(-np.diff(bounds) // height), 0))
    tile_begins = bounds[run] + index * height
    tile_ends = np.minimum(tile_begins + height, bounds[run + 1])
    end_pieces = np.cumsum(num_over[run])
    tiles = np.stack([tile_begins, tile_ends, end_pieces - num_over[run], end_pieces], axis=1)

    tile, index = _spread(num_over[run])
    segment = over[(np.cumsum(num_over) - num_over)[run[tile]] + index]
    scratch_ends = np.cumsum((tile_ends - tile_begins)[tile])
    first_scratch = scratch_ends - (tile_ends - tile_begins)[tile]
    pieces = np.stack([tile_begins[tile], tile_ends[tile], slots[segment], first_scratch], axis=1)
    return Tiles(tiles, pieces, scales[segment], int(scratch_ends[-1]) if len(scratch_ends) else 0)


def _spread(counts: Ints) -> tuple[Ints, Ints]:
    """`counts[i]` entries for each i: whose each entry is, and its index among them. [2, 1] -> [0, 0, 1], [0, 1, 0]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
