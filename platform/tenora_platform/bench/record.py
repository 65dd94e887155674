"""What the client saw of one request. Every metric is computed from these and from nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

UNFINISHED: Final = "unfinished"  # still running when the drain ended
NOT_SENT: Final = "not_sent"  # the client had too many in flight


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the server counts them; `cached` of the prompt were found in its prefix cache."""

    prompt: int
    output: int
    cached: int = 0


class Failure(msgspec.Struct, frozen=True):
    kind: str  # a word to count by: http_429, connection, timeout, error_event, truncated, ...
    message: str = ""  # never holds a key


class Record(msgspec.Struct):
    """Written while the request runs. Instants are seconds of one monotonic clock.

    In an open loop `intended` is the scheduled instant and latencies count from it, so that a client or server that
    falls behind cannot hide the wait ("coordinated omission"). In a closed loop it equals `sent`.
    """

    tenant: str
    model: str
    intended: float
    sent: float
    chunks: list[float] = []  # arrivals of the events that carried text
    ended: float | None = None  # arrival of the last event that belonged to a choice
    usage: Usage | None = None
    failure: Failure | None = None

    @property
    def completed(self) -> bool:
        return self.failure is None and self.ended is not None

    @property
    def first(self) -> float | None:
        """Arrival of the first text; of the end, for an answer that has none."""
        return self.chunks[0] if self.chunks else self.ended

    @property
    def output_tokens(self) -> int:
        """By the server's usage; without one, one per event that carried text."""
        return self.usage.output if self.usage is not None else len(self.chunks)

    @property
    def ttft_s(self) -> float | None:
        return None if self.first is None else self.first - self.intended

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended is None else self.ended - self.intended

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for an answer of one token."""
        if self.first is None or self.ended is None or self.output_tokens < 2:
            return None
        return (self.ended - self.first) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between arrivals of text, as a reader sees them: a chunk of three tokens makes one gap, not three."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]
