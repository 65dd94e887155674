"""What a tenant used, straight from the usage events."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from tenora_platform.control.errors import InvalidRequest
from tenora_platform.control.period import FIRST_YEAR, LAST_YEAR, Span, day_start
from tenora_platform.control.transaction import Transaction
from tenora_platform.control.usage.buckets import LONGEST, bucket_starts
from tenora_platform.control.usage.schemas import Bucket, UsageItem, UsageView
from tenora_platform.control.usage.totals import Total, add_up
from tenora_platform.db.models import Tenant, UsageEventRow
from tenora_platform.db.session import scoped


def usage_span(tenant: Tenant, start: str | None, end: str | None, bucket: Bucket) -> Span:
    """From `start` to before `end`: RFC 3339 instants, or days of the tenant. Without them, the last day (by hour) or
    the last seven (by day) up to now. Raises InvalidRequest."""
    until = _instant(end, tenant.timezone, "to") if end else datetime.now(UTC) + timedelta(seconds=1)
    length = timedelta(days=1) if bucket is Bucket.HOUR else timedelta(days=7)
    since = _instant(start, tenant.timezone, "from") if start else until - length
    if since >= until:
        raise InvalidRequest("from must be before to.", param="from")
    if until - since > LONGEST[bucket]:
        raise InvalidRequest(f"At most {LONGEST[bucket].days} days can be shown by {bucket}.", param="bucket")
    return Span(since, until)


def get_usage(work: Transaction, tenant: Tenant, span: Span, bucket: Bucket) -> UsageView:
    starts = bucket_starts(span, tenant.timezone, bucket)
    events = scoped(UsageEventRow, tenant.id).where(
        UsageEventRow.finished_at >= span.starts_at, UsageEventRow.finished_at < span.ends_at
    )
    totals = add_up(work.session, events, starts, by=("base_model", "adapter"))
    zone = ZoneInfo(tenant.timezone)
    return UsageView(items=[_item(total, starts, zone) for total in sorted(totals, key=_order)])


def _item(total: Total, starts: list[datetime], zone: ZoneInfo) -> UsageItem:
    base_model, adapter = total.by
    return UsageItem(
        bucket_start=starts[total.index].astimezone(zone),
        base_model=base_model,
        adapter=adapter,
        requests=total.counts.requests,
        prompt_tokens=total.counts.prompt,
        cached_tokens=total.counts.cached,
        completion_tokens=total.counts.completion,
    )


def _order(total: Total) -> tuple[int, str, str]:
    """By time, then by name, the base before its adapters."""
    base_model, adapter = total.by
    return total.index, base_model, adapter or ""


def _instant(text: str, zone: str, param: str) -> datetime:
    try:
        if len(text) == len("2026-11-29"):
            instant = day_start(_sane(date.fromisoformat(text)), zone)
        else:
            instant = datetime.fromisoformat(text)
            _sane(instant.date())
    except ValueError as error:
        raise InvalidRequest("Write a day (2026-11-29) or an instant with its zone.", param=param) from error
    if instant.tzinfo is None:
        raise InvalidRequest("The instant needs a time zone, such as Z.", param=param)
    return instant


def _sane(day: date) -> date:
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise ValueError("out of range")
    return day
