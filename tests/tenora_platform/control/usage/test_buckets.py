"""Where a tenant's hours and days begin, where clocks are awkward too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_platform.control.period import Span
from tenora_platform.control.usage.buckets import bucket_starts
from tenora_platform.control.usage.schemas import Bucket

ZONES = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia"]


def span(start: str, end: str) -> Span:
    return Span(datetime.fromisoformat(start), datetime.fromisoformat(end))


@pytest.mark.parametrize(("night", "hours"), [("2025-03-30", 23), ("2025-10-26", 25), ("2025-07-01", 24)])
def test_a_day_has_the_hours_it_has(night: str, hours: int) -> None:
    """BILL-04"""
    zone = ZoneInfo("Europe/Berlin")
    start = datetime.fromisoformat(night).replace(tzinfo=zone)
    end = (datetime.fromisoformat(night) + timedelta(days=1)).replace(tzinfo=zone)
    starts = bucket_starts(Span(start, end), "Europe/Berlin", Bucket.HOUR)
    assert len(starts) == len(set(starts)) == hours


def test_hours_begin_where_the_zone_says() -> None:
    starts = bucket_starts(span("2025-01-01T00:00Z", "2025-01-01T02:00Z"), "Asia/Kathmandu", Bucket.HOUR)
    assert [start.strftime("%d %H:%M") for start in starts] == ["31 23:15", "01 00:15", "01 01:15"]


@settings(max_examples=100, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    start=st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),
    hours=st.integers(1, 100),
    bucket=st.sampled_from(list(Bucket)),
)
def test_buckets_cover_the_span(zone: str, start: datetime, hours: int, bucket: Bucket) -> None:
    wanted = Span(start, start + timedelta(hours=hours))
    starts = bucket_starts(wanted, zone, bucket)
    assert starts[0] <= wanted.starts_at
    assert all(one < following for one, following in pairwise(starts))
    assert len(starts) == 1 or starts[1] > wanted.starts_at
    assert starts[-1] < wanted.ends_at
    assert all(one.astimezone(ZoneInfo(zone)).minute == 0 for one in starts if bucket is Bucket.HOUR)
