"""Usage events added up between instants: what the usage page shows and what an export bills is one query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, DateTime, Select, func, literal, select
from sqlalchemy.orm import Session

from tenora_platform.db.models import UsageEventRow


@dataclass(frozen=True)
class Counts:
    """Usage added up. `cached` is the part of `prompt` that was found in the prefix cache."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True)
class Total:
    """The events that finished in [starts[index], starts[index + 1]) and have the same values in the columns `by`."""

    index: int
    by: tuple[Any, ...]
    counts: Counts


def add_up(
    session: Session, events: Select[UsageEventRow], starts: Sequence[datetime], by: Sequence[str]
) -> Iterator[Total]:
    """`events` none of which finished before starts[0], added up; in no order."""
    bounds = literal(list(starts), ARRAY(DateTime(timezone=True)))
    # width_bucket's buckets are half-open, and the first is 1.
    event = events.add_columns(func.width_bucket(UsageEventRow.finished_at, bounds).label("bucket")).subquery()
    keys = [event.c.bucket, *(event.c[name] for name in by)]
    tokens = (event.c.prompt_tokens, event.c.cached_tokens, event.c.completion_tokens)
    query = select(*keys, func.count(), *map(func.sum, tokens)).group_by(*keys)
    for bucket, *values, requests, prompt, cached, completion in session.execute(query):
        counts = Counts(requests, int(prompt), int(cached), int(completion))
        yield Total(bucket - 1, tuple(values), counts)
