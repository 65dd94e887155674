"""The rows of a step: which token of which sequence lies where, and whose adapter it uses.

A step is computed on another thread, while the core commits the step before it and plans the next. So a launch takes
along all that it needs of a sequence (`Part`), and nothing that happens to the sequence afterwards changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

from tenora_engine.kernels.attention import Span
from tenora_engine.kernels.lora import Segment
from tenora_engine.scheduler import Chunk


@dataclass(frozen=True, slots=True)
class SlotUse:
    """An adapter as the kernels know it."""

    slot: int
    scale: float


@dataclass(eq=False, slots=True)
class Part:
    """A chunk as it was when it was launched."""

    chunk: Chunk
    tokens: list[int]  # of its positions
    unknown: int | None  # index of the token that the launch before draws; it is filled in before this one computes
    blocks: list[int]
    adapters: tuple[SlotUse, ...]
    starts: tuple[int, ...]  # of each adapter, the first position that it changes

    @classmethod
    def of(cls, chunk: Chunk, block_size: int, slot_of: Callable[[str], int]) -> Part:
        """`slot_of` gives the slot of an adapter's digest; those of a planned chunk are pinned."""
        sequence = chunk.sequence
        activations = sequence.request.activations
        known = sequence.tokens[chunk.start : chunk.end - len(chunk.drafts)]
        num_unknown = chunk.length - len(chunk.drafts) - len(known)
        assert 0 <= num_unknown <= 1
        return cls(
            chunk=chunk,
            tokens=[*known, *(0,) * num_unknown, *chunk.drafts],
            unknown=len(known) if num_unknown else None,
            blocks=sequence.blocks[: -(-chunk.end // block_size)],
            adapters=tuple(SlotUse(slot_of(use.digest), use.scale) for use, _ in activations),
            starts=tuple(start for _, start in activations),
        )

    @property
    def num_drawn(self) -> int:
        """Positions whose logits are wanted: the last known token and the drafts after it."""
        return 1 + len(self.chunk.drafts) if self.chunk.samples else 0

    def runs(self, begin: int, end: int) -> list[tuple[tuple[SlotUse, ...], int]]:
        """Positions begin .. end as (adapters, number of rows), cut where an adapter begins to apply."""
        cuts = [begin, *sorted({start for start in self.starts if begin < start < end}), end]
        uses = list(zip(self.adapters, self.starts, strict=True))
        return [
            (tuple(use for use, start in uses if start <= first), next_first - first)
            for first, next_first in pairwise(cuts)
        ]


@dataclass(frozen=True, slots=True)
class Placed:
    """A part and its rows: begin .. end of the step, and from `first_drawn` on of those whose logits are wanted."""

    part: Part
    begin: int
    end: int
    first_drawn: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A step of T rows. Parts with the same adapters lie side by side; a step without adapters keeps its order."""

    placed: list[Placed]
    positions: list[int]  # [T]
    places: list[int]  # [T], where keys and values go: block * block_size + offset
    spans: list[Span]
    segments: list[Segment]
    drawn_rows: list[int]  # rows whose logits are wanted
    drawn_segments: list[Segment]  # the adapters of these

    @property
    def tokens(self) -> list[int]:
        """[T], when all of them are known."""
        return [token for item in self.placed for token in item.part.tokens]


def lay_out(parts: Iterable[Part], block_size: int) -> Layout:
    ordered = sorted(parts, key=lambda part: [(use.slot, use.scale) for use in part.adapters])
    placed: list[Placed] = []
    positions: list[int] = []
    places: list[int] = []
    spans: list[Span] = []
    drawn_rows: list[int] = []
    for part in ordered:
        chunk, blocks, begin = part.chunk, part.blocks, len(positions)
        end = begin + chunk.length
        placed.append(Placed(part, begin, end, len(drawn_rows)))
        for position in range(chunk.start, chunk.end):
            positions.append(position)
            places.append(blocks[position // block_size] * block_size + position % block_size)
        spans.append(Span(begin, end, chunk.end, blocks))
        drawn_rows += range(end - part.num_drawn, end)
    return Layout(
        placed=placed,
        positions=positions,
        places=places,
        spans=spans,
        segments=segments(chain.from_iterable(part.runs(part.chunk.start, part.chunk.end) for part in ordered)),
        drawn_rows=drawn_rows,
        drawn_segments=segments(
            chain.from_iterable(
                part.runs(part.chunk.end - part.num_drawn, part.chunk.end) for part in ordered if part.num_drawn
            )
        ),
    )


def segments(runs: Iterable[tuple[Sequence[SlotUse], int]]) -> list[Segment]:
    """For consecutive rows, given as (adapters, number of rows); neighbours with the same adapters are one segment."""
    found: list[Segment] = []
    begin = 0
    for uses, group in groupby(runs, key=lambda run: run[0]):
        end = begin + sum(length for _, length in group)
        found += (Segment(begin, end, use.slot, use.scale) for use in uses)
        begin = end
    return found
