"""Days and months of a tenant as instants. Pure: no clock, no database.

A day begins at the first instant that its zone calls midnight (or, where the clocks skip midnight, at the instant
they skip) and ends where the next one begins: half-open, so that every instant is in exactly one day, and the days
of a month are the month. A day can have 23 or 25 hours, and in a zone that once jumped over a whole day, none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

FIRST_YEAR: Final = 2000
LAST_YEAR: Final = 2199
MAX_DAYS: Final = 366
_ONE_DAY: Final = timedelta(days=1)


class PeriodError(ValueError):
    """Not a period that can be exported; the message says why."""


@dataclass(frozen=True)
class Span:
    """The instants from `starts_at` to just before `ends_at`, both aware, kept in UTC."""

    starts_at: datetime
    ends_at: datetime

    def __post_init__(self) -> None:
        for name, instant in (("starts_at", self.starts_at), ("ends_at", self.ends_at)):
            if instant.tzinfo is None:
                raise PeriodError(f"{name} has no time zone")
            object.__setattr__(self, name, instant.astimezone(UTC))
        if self.ends_at < self.starts_at:
            raise PeriodError("the span ends before it starts")

    def holds(self, instant: datetime) -> bool:
        """Raises PeriodError on a naive instant."""
        if instant.tzinfo is None:
            raise PeriodError("the instant has no time zone")
        return self.starts_at <= instant < self.ends_at


@dataclass(frozen=True)
class Period:
    """Days `first_day` to `last_day`, both included, in an IANA `zone`. Raises PeriodError."""

    first_day: date
    last_day: date
    zone: str

    def __post_init__(self) -> None:
        if self.last_day < self.first_day:
            raise PeriodError("the last day is before the first")
        if not (self.first_day.year >= FIRST_YEAR and self.last_day.year <= LAST_YEAR):
            raise PeriodError(f"the years {FIRST_YEAR} to {LAST_YEAR} can be exported")
        if (self.last_day - self.first_day).days >= MAX_DAYS:
            raise PeriodError(f"at most {MAX_DAYS} days fit in one export")

    @property
    def span(self) -> Span:
        return Span(day_start(self.first_day, self.zone), day_start(self.last_day + _ONE_DAY, self.zone))

    @property
    def days(self) -> list[date]:
        count = (self.last_day - self.first_day).days + 1
        return [self.first_day + timedelta(days=offset) for offset in range(count)]


def day_start(day: date, zone: str) -> datetime:
    """The first instant of `day` in `zone`, in UTC."""
    return datetime.combine(day, time.min, ZoneInfo(zone)).astimezone(UTC)


def month(text: str, zone: str) -> Period:
    """The period `2026-11`. Raises PeriodError."""
    match = re.fullmatch(r"([0-9]{4})-(0[1-9]|1[0-2])", text)
    if match is None:
        raise PeriodError("a month is written like 2026-11")
    year, number = int(match[1]), int(match[2])
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise PeriodError(f"the years {FIRST_YEAR} to {LAST_YEAR} can be exported")
    following = date(year + number // 12, number % 12 + 1, 1)
    return Period(date(year, number, 1), following - _ONE_DAY, zone)
