"""Records to figures. Pure: what each figure means is docs/bench.md, and the formulas are here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tenora_platform.bench.load import Window
from tenora_platform.bench.record import UNFINISHED, Record

_ONE_TOKEN_PER_CHUNK: Final = 1.05


class Slo(msgspec.Struct, frozen=True):
    """What one request must keep to; None is no limit. `gap_s` holds for its longest gap."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_s: float | None = None
    e2e_s: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in msgspec.structs.astuple(self))

    def is_met(self, record: Record) -> bool:
        """A request that failed or was not finished does not meet it."""
        pairs = (
            (record.ttft_s, self.ttft_s),
            (record.tpot_s, self.tpot_s),
            (max(record.gaps_s, default=None), self.gap_s),
            (record.e2e_s, self.e2e_s),
        )
        return record.completed and all(value is None or limit is None or value <= limit for value, limit in pairs)


class Spread(msgspec.Struct, frozen=True):
    """Of a sample: mean and percentiles (linear between neighbours)."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Figures(msgspec.Struct, frozen=True):
    """Rates are over the window, latencies of the requests that were due in it and completed. Seconds and tokens."""

    requests: int  # due within the window
    completed: int
    unfinished: int
    errors: dict[str, int]  # by kind, without the unfinished
    requests_per_s: float  # that ended well within the window
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None  # requests per second that met the SLO; None without one
    slo_share: float | None  # of the requests
    ttft_s: Spread | None
    tpot_s: Spread | None
    gap_s: Spread | None
    e2e_s: Spread | None
    prompt_tokens: int  # of the completed requests, as are the following
    cached_tokens: int
    output_tokens: int
    tokens_per_chunk: float | None
    without_usage: int  # completed requests whose output tokens had to be counted by chunks

    @property
    def total_tokens_per_s(self) -> float:
        return self.prompt_tokens_per_s + self.output_tokens_per_s

    @property
    def notes(self) -> list[str]:
        """What the reader must know to read the figures right."""
        found = []
        if self.without_usage:
            found.append(f"{self.without_usage} answers came without usage: their tokens were counted by chunks")
        if self.tokens_per_chunk is not None and self.tokens_per_chunk > _ONE_TOKEN_PER_CHUNK:
            found.append(f"{self.tokens_per_chunk:.2f} tokens came per chunk: gaps are between chunks, not tokens")
        return found


def figures(records: Sequence[Record], window: Window, slo: Slo) -> Figures:
    """Of these records of a run. The tokens of a request count where its chunks arrived, in equal parts."""
    due = [record for record in records if record.intended in window]
    completed = [record for record in due if record.completed]
    errors = Counter(record.failure.kind for record in due if record.failure is not None)
    unfinished = errors.pop(UNFINISHED, 0)
    good = sum(slo.is_met(record) for record in due)
    chunks = sum(len(record.chunks) for record in completed)
    output = sum(record.output_tokens for record in completed)
    return Figures(
        requests=len(due),
        completed=len(completed),
        unfinished=unfinished,
        errors=dict(errors),
        requests_per_s=_per_s(sum(r.completed and r.ended in window for r in records if r.ended is not None), window),
        prompt_tokens_per_s=_per_s(_prompt_tokens_in(records, window), window),
        output_tokens_per_s=_per_s(_output_tokens_in(records, window), window),
        goodput_per_s=_per_s(good, window) if slo else None,
        slo_share=good / len(due) if slo and due else None,
        ttft_s=spread([record.ttft_s for record in completed]),
        tpot_s=spread([record.tpot_s for record in completed]),
        gap_s=spread([gap for record in completed for gap in record.gaps_s]),
        e2e_s=spread([record.e2e_s for record in completed]),
        prompt_tokens=sum(record.usage.prompt for record in completed if record.usage is not None),
        cached_tokens=sum(record.usage.cached for record in completed if record.usage is not None),
        output_tokens=output,
        tokens_per_chunk=output / chunks if chunks else None,
        without_usage=sum(record.usage is None for record in completed),
    )


def by_tenant(records: Sequence[Record], window: Window, slo: Slo) -> dict[str, Figures]:
    names = sorted({record.tenant for record in records})
    return {name: figures([r for r in records if r.tenant == name], window, slo) for name in names}


def by_model(records: Sequence[Record], window: Window, slo: Slo) -> dict[str, Figures]:
    names = sorted({record.model for record in records})
    return {name: figures([r for r in records if r.model == name], window, slo) for name in names}


def spread(values: Sequence[float | None]) -> Spread | None:
    """None of an empty sample; values that are None do not belong to it."""
    sample = np.array([value for value in values if value is not None])
    if not sample.size:
        return None
    p50, p95, p99 = np.percentile(sample, [50, 95, 99])
    return Spread(sample.size, float(sample.mean()), float(p50), float(p95), float(p99), float(sample.max()))


def _per_s(count: float, window: Window) -> float:
    return count / window.seconds if window.seconds > 0 else 0.0


def _output_tokens_in(records: Sequence[Record], window: Window) -> float:
    """Failed requests count nothing; of unfinished ones each chunk counts as one token."""
    total = 0.0
    for record in records:
        if not (record.completed or _is_unfinished(record)):
            continue
        arrivals = record.chunks or [record.first or window.end]
        total += record.output_tokens * sum(arrival in window for arrival in arrivals) / len(arrivals)
    return total


def _prompt_tokens_in(records: Sequence[Record], window: Window) -> int:
    """A prompt counts where its first token arrived."""
    return sum(
        record.usage.prompt
        for record in records
        if record.completed and record.usage is not None and record.first is not None and record.first in window
    )


def _is_unfinished(record: Record) -> bool:
    return record.failure is not None and record.failure.kind == UNFINISHED
