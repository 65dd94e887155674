"""BILL-04: periods are half-open in the tenant's own zone, and cut time into parts without overlap or gap."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_platform.control.period import Period, PeriodError, Span, day_start, month

MICRO = timedelta(microseconds=1)
# Among them: half and quarter hours, both hemispheres, midnight changes (Beirut, Havana, Santiago), a day that was
# skipped (Apia, 2011-12-30), a change of half an hour (Lord Howe) and one at a minute past midnight (St John's).
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "America/St_Johns",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Africa/Casablanca",
]


def day(text: str, zone: str) -> Span:
    return Period(date.fromisoformat(text), date.fromisoformat(text), zone).span


@pytest.mark.parametrize(
    ("local", "zone", "starts", "ends", "hours"),
    [
        ("2025-03-30", "Europe/Berlin", "2025-03-29T23:00Z", "2025-03-30T22:00Z", 23),
        ("2025-10-26", "Europe/Berlin", "2025-10-25T22:00Z", "2025-10-26T23:00Z", 25),
        ("2025-11-02", "America/New_York", "2025-11-02T04:00Z", "2025-11-03T05:00Z", 25),
        ("2011-12-30", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-30T10:00Z", 0),
    ],
)
def test_days_on_which_the_clocks_change(local: str, zone: str, starts: str, ends: str, hours: int) -> None:
    """BILL-04"""
    span = day(local, zone)
    assert (span.starts_at, span.ends_at) == (datetime.fromisoformat(starts), datetime.fromisoformat(ends))
    assert span.ends_at - span.starts_at == timedelta(hours=hours)


def test_midnight_belongs_to_the_day_that_begins() -> None:
    """BILL-04: 23:59:59.999999, 00:00:00 and 00:00:00.000001."""
    midnight = datetime(2025, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    june, july = month("2025-06", "Europe/Berlin").span, month("2025-07", "Europe/Berlin").span
    assert [june.holds(midnight + step) for step in (-MICRO, 0 * MICRO, MICRO)] == [True, False, False]
    assert [july.holds(midnight + step) for step in (-MICRO, 0 * MICRO, MICRO)] == [False, True, True]


def test_both_half_past_twos_of_the_autumn_night() -> None:
    """BILL-04: the same wall time twice, an hour apart, on one day."""
    zone = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2025, 10, 26, 2, 30, tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    assert second - first == timedelta(hours=1)
    assert day("2025-10-26", "Europe/Berlin").holds(first)
    assert day("2025-10-26", "Europe/Berlin").holds(second)


@settings(max_examples=150, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    year=st.integers(2000, 2050),
    number=st.integers(1, 12),
    where=st.floats(0, 1),
)
def test_days_are_a_partition_of_the_month(zone: str, year: int, number: int, where: float) -> None:
    """BILL-04: any instant of a month is in exactly one of its days, and months follow each other without a gap."""
    period = month(f"{year}-{number:02}", zone)
    span = period.span
    days = [Period(local, local, zone).span for local in period.days]
    assert days[0].starts_at == span.starts_at
    assert days[-1].ends_at == span.ends_at
    assert all(one.ends_at == following.starts_at for one, following in pairwise(days))
    assert day_start(period.last_day + timedelta(days=1), zone) == span.ends_at

    instant = min(span.starts_at + where * (span.ends_at - span.starts_at), span.ends_at - MICRO)
    assert sum(one.holds(instant) for one in days) == 1


@settings(max_examples=100, deadline=None)
@given(
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
    instant=st.datetimes(datetime(2000, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
def test_a_day_holds_the_instants_of_its_date(zone: str, instant: datetime) -> None:
    local = instant.astimezone(ZoneInfo(zone)).date()
    assert Period(local, local, zone).span.holds(instant)


def test_naive_instants_are_refused() -> None:
    """BILL-04: LiteLLM #34896 lost the zone."""
    with pytest.raises(PeriodError, match="no time zone"):
        Span(datetime(2025, 1, 1), datetime(2025, 1, 2, tzinfo=UTC))
    with pytest.raises(PeriodError, match="no time zone"):
        day("2025-01-01", "UTC").holds(datetime(2025, 1, 1))


@pytest.mark.parametrize("text", ["2025-13", "2025-00", "2025-1", "25-01", "1999-12", "2200-01", "2025-01 ", ""])
def test_what_is_not_a_month(text: str) -> None:
    with pytest.raises(PeriodError):
        month(text, "UTC")


def test_what_is_not_a_period() -> None:
    for first, last in (
        (date(2025, 1, 2), date(2025, 1, 1)),
        (date(2024, 1, 1), date(2025, 1, 1)),
        (date.min, date.min),
    ):
        with pytest.raises(PeriodError):
            Period(first, last, "UTC")
