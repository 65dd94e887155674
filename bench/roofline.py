"""What a step's kernels must move and multiply at least, what ours do, and how much of what they launch is useful.

    python bench/roofline.py

Nothing runs and nothing is timed: programs are counted by the launchers' own grids and tables, of an 8B Llama's layers.
For LoRA the published tiling of vLLM is counted the same way, as its release 0.32.0 has it: `_lora_shrink` and
`_lora_expand` in `vllm/lora/ops/triton_ops`, with the default configurations of `get_lora_op_configs` there.

A product counts two operations for each number that it adds up. What a program asks for it is taken to move, whether a
cache has it or not; "at least" is every operand once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.attention_launch import HEADS_BLOCK, attention_launch
from tenora_engine.kernels.attention_step import PagedAttention, Tables
from tenora_engine.kernels.bgmv import bgmv_columns
from tenora_engine.kernels.kv import kv_token_bytes
from tenora_engine.kernels.launch_table import ANY, find
from tenora_engine.kernels.lora import LoraShape, Segment
from tenora_engine.kernels.lora_apply import launches_of
from tenora_engine.kernels.lora_launch import Launch
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_step import LoraStep
from tenora_engine.kernels.sgmv import ShrinkSizes, shrink_sizes

CPU, BF16 = torch.device("cpu"), torch.bfloat16
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 8, 128, 128256
LAYERS = {
    "q, k, v": LoraShape(HIDDEN, (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)),
    "output": LoraShape(HIDDEN, (HIDDEN,)),
    "gate, up": LoraShape(HIDDEN, (INNER, INNER)),
    "down": LoraShape(INNER, (HIDDEN,)),
}


@dataclass(frozen=True)
class Work:
    """Of one launch; of several when added up."""

    programs: int
    working: int  # of them, those that have anything to do
    done: int  # operations, with those on what fills a tile up
    moved: int  # bytes

    def __add__(self, other: Work) -> Work:
        return Work(
            self.programs + other.programs,
            self.working + other.working,
            self.done + other.done,
            self.moved + other.moved,
        )


NOTHING = Work(0, 0, 0, 0)


@dataclass(frozen=True)
class Least:
    """What an operation needs however it is done."""

    operations: int
    moved: int  # bytes


def ceil(size: int, block: int) -> int:
    """`size` in whole blocks."""
    return -(-size // block) * block


# --- LoRA ---


@dataclass(frozen=True)
class LoraWork:
    """A step's adapters on one layer. ranks: by slot, of each slice."""

    segments: Sequence[Segment]
    shape: LoraShape
    ranks: Sequence[tuple[int, ...]]
    dtype: torch.dtype = BF16

    def least(self) -> Least:
        """Each adapter in use, each row of x, and each row of y in the slices that change, there and back."""
        used = {segment.slot for segment in self.segments}
        numbers = sum(self._adapter(self.ranks[slot]) for slot in used)
        operations = 0
        for segment in self.segments:
            rows = segment.end - segment.begin
            operations += 2 * rows * self._adapter(self.ranks[segment.slot])
            changed = sum(s for s, rank in zip(self.shape.slices, self.ranks[segment.slot], strict=True) if rank)
            numbers += rows * (self.shape.in_features + 2 * changed)
        return Least(operations, numbers * self.dtype.itemsize)

    def _adapter(self, ranks: tuple[int, ...]) -> int:
        """Its numbers, each of which a row is multiplied with."""
        return sum(rank * (self.shape.in_features + s) for s, rank in zip(self.shape.slices, ranks, strict=True))

    def launches(self, target: str = ANY) -> dict[str, Work]:
        """By kernel, as the launcher would choose them now."""
        slots = TableSlots(self.shape, len(self.ranks), self.dtype, CPU)
        slots.ranks[:] = self.ranks
        step = LoraStep(self.segments, CPU)
        if not step.touches(slots):
            return {}
        chosen = launches_of(step, slots, self.dtype, target)
        if "bgmv" in chosen:
            return {"bgmv": self._bgmv(slots, step, chosen["bgmv"])}
        sizes = shrink_sizes(slots, step, chosen["shrink"])
        return {
            "shrink": self._shrink(slots, step, chosen["shrink"], sizes),
            "expand": self._expand(slots, step, chosen["expand"], sizes.num_splits),
        }

    def _bgmv(self, slots: TableSlots, step: LoraStep, launch: Launch) -> Work:
        """Every program makes the product with A anew for its columns."""
        chunks = bgmv_columns(slots, step, launch).table.tolist()
        in_features, working, done, numbers = self.shape.in_features, 0, 0, 0
        for begin, end, pieces in _tiles(step):
            for part, first, last, _, _ in chunks:
                ranks = [r for _, _, slot, _ in pieces if (r := int(slots.ranks[slot, part]))]
                working += bool(ranks)
                tile = launch.height * launch.rank_block
                done += len(ranks) * 2 * tile * (ceil(in_features, launch.block) + ceil(last - first, launch.block))
                for rank in ranks:
                    numbers += (rank + end - begin) * in_features + (rank + 2 * (end - begin)) * (last - first)
        return Work(step.num_tiles * len(chunks), working, done, numbers * self.dtype.itemsize)

    def _shrink(self, slots: TableSlots, step: LoraStep, launch: Launch, sizes: ShrinkSizes) -> Work:
        working, done, moved, size = 0, 0, 0, self.dtype.itemsize
        for begin, end, pieces in _tiles(step):
            for _, _, slot, _ in pieces:
                rank = int(slots.ranks[slot].sum())
                num_blocks = -(-rank // launch.rank_block)
                working += num_blocks * sizes.num_splits
                in_features = sum(
                    ceil(min(self.shape.in_features - at, sizes.split_size), launch.block)
                    for at in range(0, self.shape.in_features, sizes.split_size)
                )
                done += num_blocks * 2 * launch.height * launch.rank_block * in_features
                moved += (rank + num_blocks * (end - begin)) * self.shape.in_features * size
                moved += rank * (end - begin) * sizes.num_splits * 4  # fp32, to be added up
        return Work(step.num_pieces * sizes.num_rank_blocks * sizes.num_splits, working, done, moved)

    def _expand(self, slots: TableSlots, step: LoraStep, launch: Launch, num_splits: int) -> Work:
        chunks = slots.columns(launch.block).table.tolist()
        working, done, moved, size = 0, 0, 0, self.dtype.itemsize
        for begin, end, pieces in _tiles(step):
            for part, first, last, _, _ in chunks:
                ranks = [r for _, _, slot, _ in pieces if (r := int(slots.ranks[slot, part]))]
                working += bool(ranks)
                for rank in ranks:
                    done += 2 * launch.height * launch.block * ceil(rank, launch.rank_block)
                    moved += rank * ((last - first) * size + (end - begin) * num_splits * 4)
                moved += 2 * bool(ranks) * (end - begin) * (last - first) * size
        return Work(step.num_tiles * len(chunks), working, done, moved)

    def of_vllm(self, num_slots: int) -> dict[str, Work]:
        """The same step by vLLM's two launches. num_slots: its `max_loras`.

        The third dimension of both grids is `max_loras + 1`, each slot and "none", unless `specialize_active_lora` is
        set; the second the slices. Slots are as wide as the largest rank, zeros behind an adapter's own; a program
        that has only these counts as one without work. Split-K adds atomically to zeroed fp32.
        """
        rows = sum(segment.end - segment.begin for segment in self.segments)
        widest = max(max(ranks) for ranks in self.ranks)
        of_slot: dict[int, int] = {}
        for segment in self.segments:
            of_slot[segment.slot] = of_slot.get(segment.slot, 0) + segment.end - segment.begin
        slices, in_features, size = self.shape.slices, self.shape.in_features, self.dtype.itemsize

        few = rows < 128
        height, width, block, splits = 32, 16, 256 if few else 32, 64 if few else 8
        num_widths = -(-widest // width)
        working = done = moved = 0
        for slot, count in of_slot.items():
            for rank in self.ranks[slot]:
                num_tiles = -(-count // height)
                live = min(splits, -(-in_features // block))  # those behind find no part of the sum
                working += num_tiles * -(-rank // width) * live
                done += num_tiles * num_widths * 2 * height * width * ceil(in_features, block)
                moved += (num_tiles * widest + num_widths * count) * in_features * size
                moved += count * widest * splits * 4
        moved += len(slices) * rows * widest * 4  # the zeroing
        tiles = -(-rows // height)
        shrink = Work(splits * tiles * num_widths * len(slices) * (num_slots + 1), working, done, moved)

        height, width, block = 64, 64 if len(slices) > 1 else 128, 32
        working = done = moved = 0
        for slot, count in of_slot.items():
            for rank, columns in zip(self.ranks[slot], slices, strict=True):
                programs = -(-count // height) * -(-columns // width)
                working += programs * bool(rank)
                done += programs * 2 * height * width * ceil(widest, block)
                moved += -(-count // height) * widest * columns * size + 2 * count * columns * size
                moved += -(-columns // width) * count * widest * 4
        tiles = -(-rows // height) * -(-max(slices) // width)
        expand = Work(tiles * len(slices) * (num_slots + 1), working, done, moved)
        return {"shrink": shrink, "expand": expand}


def _tiles(step: LoraStep) -> Iterable[tuple[int, int, list[list[int]]]]:
    """First row, end row, and the pieces of each tile."""
    pieces = step.pieces.view(-1, 4).tolist()
    for begin, end, first, last in step.tiles.view(-1, 4).tolist():
        yield begin, end, pieces[first:last]


# --- attention ---


@dataclass(frozen=True)
class AttentionWork:
    """A step's attention in one layer."""

    batch: AttentionBatch
    kv_dtype: torch.dtype = BF16
    dtype: torch.dtype = BF16
    num_heads: int = HEADS
    num_kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    window: int | None = None

    def least(self) -> Least:
        """Each query and its result, and once for each key head the keys and values that its tokens see."""
        operations = moved = 0
        for span in self.batch.spans:
            positions = np.arange(span.context - span.length, span.context)
            seen = positions + 1 if self.window is None else np.minimum(positions + 1, self.window)
            operations += int(seen.sum()) * self.num_heads * 4 * self.head_dim
            first = 0 if self.window is None else max(0, span.context - span.length - self.window + 1)
            moved += 2 * span.length * self.num_heads * self.head_dim * self.dtype.itemsize
            moved += (span.context - first) * kv_token_bytes(self.num_kv_heads, self.head_dim, self.kv_dtype)
        return Least(operations, moved)

    def launches(self) -> dict[str, Work]:
        attention = PagedAttention(self.batch, CPU, self.dtype)
        tables = attention.tables(self.num_heads // self.num_kv_heads, self.window)
        works = {
            "attend, short": self._attend(tables, tables.short, tables.short_height, tables.capacity.num_short),
            "attend, long": self._attend(tables, tables.long, tables.long_height, tables.capacity.num_long),
            "merge": self._merge(tables),
        }
        return {name: work for name, work in works.items() if work.programs}

    def _attend(self, tables: Tables, tiles: torch.Tensor, height: int, num_tiles: int) -> Work:
        done = moved = 0
        launch = attention_launch(height, self.head_dim, self.dtype, self.kv_dtype)
        for _, tokens, _, first, end, _, _, parts in tiles.view(-1, 8).tolist():
            done += self.num_kv_heads * 4 * height * ceil(end - first, launch.width) * self.head_dim
            moved += (end - first) * kv_token_bytes(self.num_kv_heads, self.head_dim, self.kv_dtype)
            out = 4 * (self.head_dim + 1) if parts > 1 else self.head_dim * self.dtype.itemsize
            moved += tokens * self.num_heads * (self.head_dim * self.dtype.itemsize + out)
        programs = num_tiles * self.num_kv_heads
        return Work(programs, programs, done, moved)

    def _merge(self, tables: Tables) -> Work:
        moved = 0
        for _, _, _, parts in tables.merges.view(-1, 4).tolist():
            moved += self.num_heads * (4 * parts * (self.head_dim + 1) + self.head_dim * self.dtype.itemsize)
        programs = tables.capacity.num_merges * self.num_heads
        return Work(programs, programs, 0, moved)


# --- what is computed of each row alone: a pass over memory, whose products do not count ---


def norm(rows: int, size: int = HIDDEN, dtype: torch.dtype = BF16) -> tuple[Least, Work]:
    """With the residual's addition: reads x, reads and writes the residual, writes the result; the weight in fp32."""
    numbers = 4 * rows * size * dtype.itemsize
    return Least(0, numbers + 4 * size), Work(rows, rows, 0, numbers + 4 * rows * size)


def gated(rows: int, size: int = INNER, dtype: torch.dtype = BF16) -> tuple[Least, Work]:
    moved = 3 * rows * size * dtype.itemsize
    programs = rows * -(-size // find("gated", ANY, dtype)["block"])
    return Least(0, moved), Work(programs, programs, 0, moved)


def place_heads(
    rows: int,
    kv_dtype: torch.dtype = BF16,
    dtype: torch.dtype = BF16,
    num_heads: int = HEADS,
    num_kv_heads: int = KV_HEADS,
    head_dim: int = HEAD_DIM,
) -> tuple[Least, Work]:
    """Queries turn in place; of keys and values, what is read here is written to the cache. Angles are fp32."""
    programs = rows * -(-(num_heads + 2 * num_kv_heads) // HEADS_BLOCK)
    heads = (2 * num_heads + 2 * num_kv_heads) * head_dim * dtype.itemsize
    heads += kv_token_bytes(num_kv_heads, head_dim, kv_dtype)
    angles = 4 * head_dim
    return Least(0, rows * (heads + angles)), Work(programs, programs, 0, rows * heads + programs * angles)


def race(rows: int, vocab_size: int = VOCAB) -> tuple[Least, Work]:
    """The weights once; a score and a token of each block."""
    programs = rows * -(-vocab_size // find("race", ANY, torch.float32)["block"])
    return Least(0, 4 * rows * vocab_size), Work(programs, programs, 0, 4 * rows * vocab_size + 12 * programs)


# --- tables ---

RANKS = (8, 16, 32, 64) * 2
HEADER = "programs  working  useful operations  bytes moved / least"


def mixed(shape: LoraShape, rows: int, ranks: Sequence[int]) -> LoraWork:
    """Rows in equal parts, an adapter each, on every slice."""
    each = rows // len(ranks)
    segments = [Segment(slot * each, (slot + 1) * each, slot, 1.0) for slot in range(len(ranks))]
    return LoraWork(segments, shape, [(rank,) * len(shape.slices) for rank in ranks])


def decoding(rows: int, context: int, kv_dtype: torch.dtype = BF16) -> AttentionWork:
    blocks = range(-(-context // 16))
    return AttentionWork(AttentionBatch([Span(row, row + 1, context, blocks) for row in range(rows)], 16), kv_dtype)


def line(name: str, work: Work, least: Least) -> str:
    useful = f"{least.operations / work.done:17.1%}" if work.done and least.operations else f"{'':17}"
    working, moved = work.working / work.programs, work.moved / least.moved
    return f"{name:40} {work.programs:9} {working:8.1%}  {useful}  {moved:19.2f}"


def main() -> None:
    print(f"LoRA of 64 tokens over 8 slots, ranks {', '.join(map(str, RANKS))}; bf16\n\n{'':40} {HEADER}")
    for name, shape in LAYERS.items():
        work = mixed(shape, 64, RANKS)
        for whose, launches in (("ours", work.launches()), ("vLLM's tiling", work.of_vllm(len(RANKS)))):
            print(line(f"{name}: {whose} ({' + '.join(launches)})", sum(launches.values(), NOTHING), work.least()))
    print(f"\nA step's other kernels; bf16\n\n{'':40} {HEADER}")
    for rows, context, kv_dtype in ((64, 1024, BF16), (64, 1024, torch.int8), (8, 32768, BF16), (8, 32768, torch.int8)):
        of_heads = decoding(rows, context, kv_dtype)
        name = f"attention, {rows} x {context}, {str(kv_dtype).removeprefix('torch.')}"
        print(line(name, sum(of_heads.launches().values(), NOTHING), of_heads.least()))
    rowwise = {"norm, 64 rows": norm(64), "gated, 64 rows": gated(64), "race, 64 rows": race(64)}
    rowwise |= {"place_heads, 64 rows": place_heads(64), "place_heads, 64 rows, int8": place_heads(64, torch.int8)}
    for name, (least, of_rows) in rowwise.items():
        print(line(name, of_rows, least))


if __name__ == "__main__":
    main()
