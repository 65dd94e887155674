"""The tensors of a step: the decoder over all its rows, then the draws. Knows no queue, no thread and no socket."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine import sampler
from tenora_engine.drawing import ChunkResult, Draw, Failure, accepted
from tenora_engine.kernels.attention import AttentionBatch
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import Segment
from tenora_engine.layout import Layout, Placed, segments
from tenora_engine.model.decoder import Adapters, Batch, Decoder
from tenora_engine.sampler import Sampled
from tenora_engine.wire import FailCode, TokenLogprob

log = logging.getLogger(__name__)

# Rows of logits made at once for prompt log-probabilities: bounds the memory that one request can ask for.
_PROMPT_ROWS: Final = 64

NOT_FINITE: Final = Failure(FailCode.NUMERICAL, "the model's output for this request is not finite")
NOT_SAMPLED: Final = Failure(FailCode.INTERNAL, "no token could be drawn for this request")


@dataclass(frozen=True, slots=True)
class Computed:
    """A step whose keys and values are written (on a GPU: will be, in the stream's order)."""

    layout: Layout
    hidden: Tensor  # [T, hidden]
    logits: Tensor | None  # fp32 [drawn rows, vocab]; None where nothing is to be drawn


@dataclass(frozen=True, slots=True)
class _Asked:
    """A draw that has sound values: for its first `num_rows` rows of logits, those from `first_row` on."""

    draw: Draw
    placed: Placed
    num_rows: int

    @property
    def logit_rows(self) -> range:
        return range(self.placed.first_drawn, self.placed.first_drawn + self.num_rows)


class Runner:
    def __init__(self, decoder: Decoder, cache: Sequence[LayerKv], block_size: int, adapters: Adapters) -> None:
        self._decoder = decoder
        self._cache = cache
        self._block_size = block_size
        self._adapters = adapters
        self._device = decoder.weights.embedding.device
        self._dtype = decoder.weights.embedding.dtype

    @torch.inference_mode()
    def forward(self, layout: Layout) -> Computed:
        """Doing it twice changes nothing: the same keys and values go to the same places."""
        kernels = self._decoder.kernels
        attention = AttentionBatch(layout.spans, self._block_size)
        batch = Batch(
            token_ids=self._indices(layout.tokens),
            positions=self._indices(layout.positions),
            places=self._indices(layout.places),
            attention=kernels.prepare_attention(attention, self._device, self._dtype),
            add_lora=kernels.prepare_lora(layout.segments, self._device),
            changes_norms=any(segment.slot in self._adapters.changing_norms for segment in layout.segments),
        )
        hidden = self._decoder.forward(batch, self._cache, self._adapters)
        logits = self._logits(hidden, layout.drawn_rows, layout.drawn_segments) if layout.drawn_rows else None
        return Computed(layout, hidden, logits)

    @torch.inference_mode()
    def draw(self, computed: Computed, draws: Sequence[Draw]) -> list[ChunkResult]:
        """One result for each draw. A request whose values are not finite, or which cannot be sampled, fails alone."""
        placed = {item.part: item for item in computed.layout.placed}
        finite = _finite(computed.hidden)
        finite_logits = [] if computed.logits is None else _finite(computed.logits)
        asked: list[_Asked] = []
        results: list[ChunkResult] = []
        for draw in draws:
            item, chunk = placed[draw.part], draw.part.chunk
            # What follows from a wrong guess says nothing of the request: of the drafts, only those that are reached.
            num_rows = _leading(finite_logits[item.first_drawn :], len(draw.rows))
            if all(finite[item.begin : item.end - len(chunk.drafts)]) and (num_rows > 0 or not draw.rows):
                asked.append(_Asked(draw, item, num_rows))
            else:
                results.append(ChunkResult(chunk, failure=NOT_FINITE))
        for one, outcome in zip(asked, self._sample(computed.logits, asked), strict=True):
            chunk = one.draw.part.chunk
            if isinstance(outcome, Failure):
                results.append(ChunkResult(chunk, failure=outcome))
            else:
                logprobs = self._prompt_logprobs(computed.hidden, one)
                results.append(ChunkResult(chunk, accepted(chunk.drafts, outcome), logprobs))
        return results

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _logits(self, hidden: Tensor, rows: Sequence[int], adapters: Sequence[Segment]) -> Tensor:
        """fp32 [rows, vocab]; `adapters` are those of the rows."""
        add_lora = self._decoder.kernels.prepare_lora(adapters, self._device)
        return self._decoder.logits(hidden.index_select(0, self._indices(rows)), add_lora, self._adapters)

    def _sample(self, logits: Tensor | None, asked: Sequence[_Asked]) -> list[list[Sampled] | Failure]:
        """All at once; if that raises, one by one, so that the one at fault fails alone."""
        try:
            return list(self._sample_together(logits, asked))
        except Exception:  # whatever one row brings, the others are to be served
            log.exception("sampling a step failed; trying its requests one by one")
        outcomes: list[list[Sampled] | Failure] = []
        for one in asked:
            try:
                outcomes += self._sample_together(logits, [one])
            except Exception:  # the one at fault
                log.exception("request %s could not be sampled", one.draw.part.chunk.sequence.request.key.request_id)
                outcomes.append(NOT_SAMPLED)
        return outcomes

    def _sample_together(self, logits: Tensor | None, asked: Sequence[_Asked]) -> list[list[Sampled]]:
        indices = [row for one in asked for row in one.logit_rows]
        if not indices:
            return [[] for _ in asked]
        assert logits is not None
        rows = [row for one in asked for row in one.draw.rows[: one.num_rows]]
        chosen = logits if indices == list(range(len(logits))) else logits[indices]
        sampled = iter(sampler.sample(chosen, rows, _masks(asked, len(rows)), self._decoder.kernels.race))
        return [[next(sampled) for _ in range(one.num_rows)] for one in asked]

    def _prompt_logprobs(self, hidden: Tensor, asked: _Asked) -> list[TokenLogprob]:
        part, positions = asked.draw.part, asked.draw.prompt
        request = part.chunk.sequence.request
        num_top = request.sampling.prompt_logprobs or 0
        logprobs: list[TokenLogprob] = []
        for begin in range(positions.start, positions.stop, _PROMPT_ROWS):
            end = min(begin + _PROMPT_ROWS, positions.stop)
            first_row = asked.placed.begin + begin - 1 - part.chunk.start  # a token is predicted by the one before it
            rows = range(first_row, first_row + end - begin)
            logits = self._logits(hidden, rows, segments(part.runs(begin - 1, end - 1)))
            logprobs += sampler.logprobs_of(logits, request.prompt[begin:end], num_top)
        return logprobs


def _finite(rows: Tensor) -> list[bool]:
    """Whether all of a row is. rows: [R, size]. By its extremes, which are NaN where anything is: nothing is written,
    where `isfinite` writes as many flags as there are values, at ten times the cost."""
    return list((rows.amax(-1).isfinite() & rows.amin(-1).isfinite()).tolist())


def _leading(sound: Sequence[bool], count: int) -> int:
    """How many of the first `count` are sound before the first that is not."""
    for index in range(count):
        if not sound[index]:
            return index
    return count


def _masks(asked: Sequence[_Asked], num_rows: int) -> Tensor | None:
    """int32 [rows, ceil(vocab / 32)], all ones for those without a grammar; None where nobody has one."""
    given = [one.draw.masks for one in asked if one.draw.masks is not None]
    if not given:
        return None
    masks = torch.full((num_rows, given[0].shape[1]), -1, dtype=torch.int32)
    begin = 0
    for one in asked:
        if one.draw.masks is not None:
            masks[begin : begin + one.num_rows] = one.draw.masks[: one.num_rows]
        begin += one.num_rows
    return masks
