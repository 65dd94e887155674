"""Executes a plan: lays out the step's tensors, runs the decoder, draws the tokens. Knows no queue and no socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

import torch
from torch import Tensor

from tenora_engine import sampler
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import AddLora, Segment
from tenora_engine.model.decoder import Adapters, Batch, Decoder
from tenora_engine.sampler import Sampled
from tenora_engine.scheduler import Chunk, Plan
from tenora_engine.wire import AdapterUse, FailCode, TokenLogprob

log = logging.getLogger(__name__)

# Rows of logits made at once for prompt log-probabilities: bounds the memory that one request can ask for.
_PROMPT_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class Failure:
    code: FailCode
    message: str


NOT_FINITE: Final = Failure(FailCode.NUMERICAL, "the model's output for this request is not finite")
NOT_SAMPLED: Final = Failure(FailCode.INTERNAL, "no token could be drawn for this request")


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What came of one chunk. With a failure its values are not to be trusted, and nothing was drawn."""

    chunk: Chunk
    sampled: Sampled | None = None
    prompt_logprobs: Sequence[TokenLogprob] = ()  # to be added to those of the request
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Placed:
    """A chunk and its rows begin..end in the step."""

    chunk: Chunk
    begin: int
    end: int

    @property
    def uses(self) -> tuple[AdapterUse, ...]:
        return self.chunk.sequence.request.adapters


class Runner:
    def __init__(
        self,
        decoder: Decoder,
        cache: Sequence[LayerKv],
        block_size: int,
        adapters: Adapters,
        slot_of: Callable[[str], int],
    ) -> None:
        """`slot_of` gives the slot of an adapter's digest; every adapter of a planned chunk is pinned."""
        self._decoder = decoder
        self._cache = cache
        self._block_size = block_size
        self._adapters = adapters
        self._slot_of = slot_of
        self._device = decoder.weights.embedding.device
        self._dtype = decoder.weights.embedding.dtype

    def run(self, plan: Plan) -> list[ChunkResult]:
        """One step. A request whose values are not finite, or which cannot be sampled, fails alone."""
        with torch.inference_mode():
            placed = _place(plan.chunks)
            hidden = self._decoder.forward(self._batch(placed), self._cache, self._adapters)
            sound_rows = hidden.isfinite().all(-1).tolist()
            sound = [item for item in placed if all(sound_rows[item.begin : item.end])]
            results = [ChunkResult(item.chunk, failure=NOT_FINITE) for item in placed if item not in sound]
            sampling = [item for item in sound if item.chunk.samples]
            drawn = self._sample(hidden, sampling)
            for item in sound:
                outcome = drawn.get(id(item.chunk))
                if isinstance(outcome, Failure):
                    results.append(ChunkResult(item.chunk, failure=outcome))
                else:
                    results.append(ChunkResult(item.chunk, outcome, self._prompt_logprobs(hidden, item)))
        return results

    def _batch(self, placed: Sequence[_Placed]) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        spans: list[Span] = []
        size = self._block_size
        for item in placed:
            chunk, blocks = item.chunk, item.chunk.sequence.blocks
            tokens += chunk.sequence.tokens[chunk.start : chunk.end]
            positions += range(chunk.start, chunk.end)
            places += (blocks[position // size] * size + position % size for position in range(chunk.start, chunk.end))
            spans.append(Span(item.begin, item.end, chunk.end, blocks))
        attention = self._decoder.kernels.prepare_attention(AttentionBatch(spans, size), self._device, self._dtype)
        return Batch(
            token_ids=self._indices(tokens),
            positions=self._indices(positions),
            places=self._indices(places),
            attention=attention,
            add_lora=self._prepare_lora((item.uses, item.end - item.begin) for item in placed),
        )

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _prepare_lora(self, runs: Iterable[tuple[tuple[AdapterUse, ...], int]]) -> AddLora:
        """For consecutive rows, given as (adapters, number of rows); neighbours with one adapter are one segment."""
        segments: list[Segment] = []
        begin = 0
        for uses, group in groupby(runs, key=lambda run: run[0]):
            end = begin + sum(length for _, length in group)
            segments += (Segment(begin, end, self._slot_of(use.digest), use.scale) for use in uses)
            begin = end
        return self._decoder.kernels.prepare_lora(segments, self._device)

    def _sample(self, hidden: Tensor, sampling: Sequence[_Placed]) -> dict[int, Sampled | Failure]:
        """By id of the chunk: its token, or why there is none."""
        if not sampling:
            return {}
        logits = self._logits(hidden, [item.end - 1 for item in sampling], [item.uses for item in sampling])
        finite = logits.isfinite().all(-1).tolist()
        outcomes: dict[int, Sampled | Failure] = {
            id(item.chunk): NOT_FINITE for item, sound in zip(sampling, finite, strict=True) if not sound
        }
        rows = [row for row, sound in enumerate(finite) if sound]
        if len(rows) < len(sampling):
            logits = logits[rows]
        chunks = [sampling[row].chunk for row in rows]
        if chunks:
            outcomes.update(zip(map(id, chunks), _draw(logits, chunks), strict=True))
        return outcomes

    def _logits(self, hidden: Tensor, rows: Sequence[int], uses: Sequence[tuple[AdapterUse, ...]]) -> Tensor:
        add_lora = self._prepare_lora((use, 1) for use in uses)
        return self._decoder.logits(hidden.index_select(0, self._indices(rows)), add_lora, self._adapters)

    def _prompt_logprobs(self, hidden: Tensor, item: _Placed) -> list[TokenLogprob]:
        """Of the prompt's tokens that this chunk predicts and that are not there yet."""
        sequence = item.chunk.sequence
        if not sequence.wants_prompt_logprobs:
            return []
        request = sequence.request
        first = max(item.chunk.start + 1, len(request.prompt_logprobs))  # position whose token is predicted
        last = min(item.chunk.end, len(request.prompt) - 1)
        num_top = request.sampling.prompt_logprobs or 0
        logprobs: list[TokenLogprob] = []
        for begin in range(first, last + 1, _PROMPT_ROWS):
            end = min(begin + _PROMPT_ROWS, last + 1)
            rows = [item.begin + position - 1 - item.chunk.start for position in range(begin, end)]
            logits = self._logits(hidden, rows, [item.uses] * len(rows))
            logprobs += sampler.logprobs_of(logits, request.prompt[begin:end], num_top)
        return logprobs


def _place(chunks: Iterable[Chunk]) -> list[_Placed]:
    """Rows for the chunks, those with the same adapters side by side; a step without adapters keeps its order."""
    ordered = sorted(chunks, key=lambda chunk: [(use.digest, use.scale) for use in chunk.sequence.request.adapters])
    ends = accumulate(chunk.length for chunk in ordered)
    return [_Placed(chunk, end - chunk.length, end) for chunk, end in zip(ordered, ends, strict=True)]


def _draw(logits: Tensor, chunks: Sequence[Chunk]) -> list[Sampled | Failure]:
    """All at once; if that raises, one by one, so that the one at fault fails alone."""
    try:
        return list(sampler.sample(logits, [sampler.Row(chunk.sequence) for chunk in chunks]))
    except Exception:  # whatever one row brings, the others are to be served
        log.exception("sampling a step failed; trying its rows one by one")
    outcomes: list[Sampled | Failure] = []
    for row, chunk in enumerate(chunks):
        try:
            outcomes += sampler.sample(logits[row : row + 1], [sampler.Row(chunk.sequence)])
        except Exception:  # the one at fault
            log.exception("request %s could not be sampled", chunk.sequence.request.key.request_id)
            outcomes.append(NOT_SAMPLED)
    return outcomes
