"""What is counted per adapter, for Prometheus, with a bounded number of labels.

An adapter has a label of its own while it is among the MAX_LABELS last heard of. Who loses it adds its counts to those
of `other`: no series ever falls, sums over all labels are exact, and an adapter that comes back begins at 0, as it
would after a restart.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from tenora_engine.wire import AdapterUse, Tier, Usage

MAX_LABELS: Final = 100
OTHER: Final = "other"
ABSENT: Final = "absent"  # beside the tiers: nothing of it was here


@dataclass(slots=True)
class _Counts:
    """Of one label."""

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys([*Tier, ABSENT], 0))
    evictions: dict[str, int] = field(default_factory=lambda: dict.fromkeys([Tier.DEVICE, Tier.HOST], 0))
    loads: int = 0
    load_failures: int = 0
    load_seconds: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: _Counts) -> None:
        for counter in fields(self):
            mine, theirs = getattr(self, counter.name), getattr(other, counter.name)
            if isinstance(mine, dict):
                for key in mine:
                    mine[key] += theirs[key]
            else:
                setattr(self, counter.name, mine + theirs)


_HELP: Final = {
    "hits": ("tier", "Requests, by where their adapter lay when they arrived."),
    "evictions": ("tier", "Times that the adapter had to leave a tier."),
    "loads": ("", "Times that the adapter was read into memory."),
    "load_failures": ("", "Times that this failed."),
    "load_seconds": ("", "Time that it took, fetching included."),
    "requests": ("", "Requests that have ended."),
    "prompt_tokens": ("", "Of these requests."),
    "completion_tokens": ("", "Of these requests."),
}


class AdapterMetrics:
    """Counted on the engine's thread, read on any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels: OrderedDict[str, _Counts] = OrderedDict()  # by digest, the one last heard of at the end
        self._other = _Counts()

    def hit(self, digest: str, tier: Tier | None) -> None:
        with self._lock:
            self._of(digest).hits[ABSENT if tier is None else tier] += 1

    def loaded(self, digest: str, seconds: float) -> None:
        with self._lock:
            counts = self._of(digest)
            counts.loads += 1
            counts.load_seconds += seconds

    def failed(self, digest: str) -> None:
        with self._lock:
            self._of(digest).load_failures += 1

    def evicted(self, digest: str, tier: Tier) -> None:
        with self._lock:
            self._of(digest).evictions[tier] += 1

    def ended(self, uses: Iterable[AdapterUse], usage: Usage) -> None:
        """A request ended that used these adapters, all at once: each is counted with all its tokens."""
        with self._lock:
            for use in uses:
                counts = self._of(use.digest)
                counts.requests += 1
                counts.prompt_tokens += usage.prompt
                counts.completion_tokens += usage.completion

    @property
    def labels(self) -> frozenset[str]:
        """Adapters that have a label of their own."""
        with self._lock:
            return frozenset(self._labels)

    def exposition(self) -> str:
        """In Prometheus' text format (version 0.0.4)."""
        with self._lock:
            series = [*self._labels.items(), (OTHER, self._other)]
            return "".join(line + "\n" for line in _lines(series))

    def _of(self, digest: str) -> _Counts:
        if digest not in self._labels:
            self._labels[digest] = _Counts()
            if len(self._labels) > MAX_LABELS:
                self._other.add(self._labels.popitem(last=False)[1])
        self._labels.move_to_end(digest)
        return self._labels[digest]


def _lines(series: list[tuple[str, _Counts]]) -> Iterator[str]:
    for counter, (label, help_text) in _HELP.items():
        name = f"tenora_engine_adapter_{counter}_total"
        yield f"# HELP {name} {help_text}"
        yield f"# TYPE {name} counter"
        for adapter, counts in series:
            value = getattr(counts, counter)
            for key, number in value.items() if isinstance(value, dict) else [("", value)]:
                more = f',{label}="{key}"' if label else ""
                yield f'{name}{{adapter="{adapter}"{more}}} {number}'
