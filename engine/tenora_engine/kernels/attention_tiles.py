"""How a step's attention is cut for a GPU: into tiles of a few tokens against a part of their keys. numpy only.

A span's tokens come in tiles that share one reading of the keys. Where a span has few tiles and many keys, as in
decoding, these are read in parts by as many programs; each leaves its sum and the logarithm of its weight in rows of
scratch memory, and a merge, token by token, adds them up in their order.

    span of 5 tokens, context 700, tiles of 4 tokens          one token, context 700

    keys     0 ................... 699                        0 ....... 255 ....... 511 ... 699
    tokens   | tile 0: 695..698    |                          | part 0     | part 1    | part 2
             | tile 1: 699          |                              `----- merge -----'

How a span is cut hangs on itself alone, never on the rest of the step: neither does what comes out, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tenora_engine.kernels.attention import Span
from tenora_engine.kernels.attention_launch import MAX_PARTS, MIN_PART, PART_STEP

Ints: TypeAlias = NDArray[np.int64]
TILE_WORDS: Final = 8
MERGE_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    tiles: Ints  # [num_tiles, 8]: first row, number of tokens, position of the first, first key, end key, where the
    # blocks of the span begin, first row of scratch, in how many parts the tile's keys are read
    merges: Ints  # [num_merges, 4], a token each: its row, its first row of scratch, from part to part, number of parts
    num_scratch_rows: int


def cut(
    spans: Sequence[Span], tokens: int, window: int | None, first_blocks: Ints, first_scratch: int
) -> AttentionTiles:
    """Tiles of at most `tokens` tokens, the longest readings first. The work here is by array, never by token.

    first_blocks: [num_spans], where in the step's list of blocks those of each span begin; it has all of them.
    """
    rows = [(span.begin, span.length, span.context) for span in spans]
    begins, lengths, contexts = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    num_tiles = -(-lengths // tokens)

    span, index = spread(num_tiles)
    first = index * tokens
    size = np.minimum(lengths[span] - first, tokens)
    position = contexts[span] - lengths[span] + first
    first_key = np.zeros_like(position) if window is None else np.maximum(position - window + 1, 0)
    num_keys = position + size - first_key
    part_size, num_parts = _parts(num_keys, num_tiles[span])

    tile, part = spread(num_parts)
    split = num_parts[tile] > 1
    scratch_ends = first_scratch + np.cumsum(np.where(split, size[tile], 0))
    scratch = np.where(split, scratch_ends - size[tile], 0)
    begin_key = first_key[tile] + part * part_size[tile]
    end_key = np.minimum(begin_key + part_size[tile], (position + size)[tile])
    columns = [(begins[span] + first)[tile], size[tile], position[tile], begin_key, end_key]
    columns += [first_blocks[span][tile], scratch, num_parts[tile]]
    longest_first = np.argsort(begin_key - end_key, kind="stable")
    tiles = np.stack(columns, axis=1)[longest_first]

    whole = np.flatnonzero(split & (part == 0))
    item, token = spread(size[tile[whole]])
    of_token = whole[item]
    columns = [(begins[span] + first)[tile[of_token]] + token, scratch[of_token] + token]
    columns += [size[tile[of_token]], num_parts[tile[of_token]]]
    merges = np.stack(columns, axis=1)
    return AttentionTiles(tiles, merges, int(scratch_ends[-1]) if len(scratch_ends) else first_scratch)


def block_list(spans: Sequence[Span], block_size: int) -> tuple[Ints, Ints]:
    """The blocks of all spans one after the other, and where those of each begin."""
    counts = np.array([-(-span.context // block_size) for span in spans], dtype=np.int64)
    taken = (span.blocks[:count] for span, count in zip(spans, counts.tolist(), strict=True))
    return np.fromiter(chain.from_iterable(taken), np.int64, int(counts.sum())), np.cumsum(counts) - counts


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """`counts[i]` entries for each i: whose each entry is, and its index among them. [2, 1] -> [0, 0, 1], [0, 1, 0]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _parts(num_keys: Ints, num_tiles: Ints) -> tuple[Ints, Ints]:
    """Size and number of the parts in which a tile of a span of `num_tiles` reads its keys."""
    most = np.clip(MAX_PARTS // num_tiles, 1, -(-num_keys // MIN_PART))
    size = -(-num_keys // (most * PART_STEP)) * PART_STEP
    return size, -(-num_keys // size)
