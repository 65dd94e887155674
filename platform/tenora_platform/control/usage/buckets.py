"""Where hours and days of a tenant begin. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tenora_platform.control.period import Span, day_start
from tenora_platform.control.usage.schemas import Bucket

_QUARTER: Final = timedelta(minutes=15)  # zones differ from UTC by whole quarters of an hour
LONGEST: Final = {Bucket.HOUR: timedelta(days=62), Bucket.DAY: timedelta(days=800)}


def bucket_starts(span: Span, zone: str, bucket: Bucket) -> list[datetime]:
    """The starts (UTC, in order) of all buckets that touch `span`; the first is at or before its start."""
    if bucket is Bucket.DAY:
        return _days(span, zone)
    return _hours(span, ZoneInfo(zone))


def _days(span: Span, zone: str) -> list[datetime]:
    day = span.starts_at.astimezone(ZoneInfo(zone)).date()
    while day_start(day, zone) > span.starts_at:  # where the clocks once went back over midnight
        day -= timedelta(days=1)
    starts = [day_start(day, zone)]
    while (following := day_start(day := day + timedelta(days=1), zone)) < span.ends_at:
        if following > starts[-1]:
            starts.append(following)
    return starts


def _hours(span: Span, zone: ZoneInfo) -> list[datetime]:
    instant = _quarter(span.starts_at)
    while instant.astimezone(zone).minute:
        instant -= _QUARTER
    starts = []
    while instant < span.ends_at:
        if not instant.astimezone(zone).minute:
            starts.append(instant)
        instant += _QUARTER
    return starts


def _quarter(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(minute=instant.minute // 15 * 15, second=0, microsecond=0)
