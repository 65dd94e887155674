"""From usage events to an export's files. What is read depends only on the row's own frozen columns (period, zone,
watermark, prices), so that the same row gives the same bytes at any later time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tenora_platform.control.exports.lines import PieceUsage, make_lines, pieces
from tenora_platform.control.exports.money import PriceBook, UnitPrice
from tenora_platform.control.exports.rendering import Files, Header, render
from tenora_platform.control.period import Period
from tenora_platform.control.usage.totals import Total, add_up
from tenora_platform.db.models import Export, Price, Tenant, UsageEventRow
from tenora_platform.db.session import scoped


def make_files(session: Session, export: Export, tenant: Tenant) -> Files:
    """The files of a frozen export."""
    assert export.up_to_sequence is not None
    assert export.prices is not None
    after = watermark_before(session, export)
    period = Period(export.period_first_day, export.period_last_day, export.timezone)
    book = PriceBook(UnitPrice.from_json(price) for price in export.prices)
    cut = pieces(period, book)
    found = _usage(session, export, after, [piece.starts_at for piece in cut])
    header = Header(
        export_id=str(export.id),
        tenant_id=str(tenant.id),
        tenant=tenant.name,
        first_day=export.period_first_day.isoformat(),
        last_day=export.period_last_day.isoformat(),
        timezone=export.timezone,
        starts_at=period.span.starts_at.isoformat(),
        ends_at=period.span.ends_at.isoformat(),
        revision=export.revision,
        after_sequence=after,
        up_to_sequence=export.up_to_sequence,
    )
    return render(header, make_lines(found, cut, book), [price.to_json() for price in book.prices])


def watermark_before(session: Session, export: Export) -> int:
    """The watermark of the revision before this one: what it held is not told again. 0 for the first."""
    query = select(func.max(Export.up_to_sequence)).where(
        Export.tenant_id == export.tenant_id,
        Export.period_first_day == export.period_first_day,
        Export.period_last_day == export.period_last_day,
        Export.revision < export.revision,
    )
    return session.scalars(query).one() or 0


def read_price_book(session: Session) -> PriceBook:
    return PriceBook(
        UnitPrice(
            base_model=row.base_model,
            effective_from=row.effective_from,
            currency=row.currency,
            prompt=row.prompt_per_million,
            cached=row.cached_per_million,
            completion=row.completion_per_million,
        )
        for row in session.scalars(select(Price))
    )


def _usage(session: Session, export: Export, after: int, starts: list[datetime]) -> list[PieceUsage]:
    """Events in (after, up_to_sequence] and in the period, added up by piece."""
    events = scoped(UsageEventRow, export.tenant_id).where(
        UsageEventRow.finished_at >= export.starts_at,
        UsageEventRow.finished_at < export.ends_at,
        UsageEventRow.sequence > after,
        UsageEventRow.sequence <= export.up_to_sequence,
    )
    totals = add_up(session, events, starts, by=("base_model", "adapter", "version_digest"))
    return [_piece_usage(total) for total in totals]


def _piece_usage(total: Total) -> PieceUsage:
    base_model, adapter, version_digest = total.by
    return PieceUsage(total.index, base_model, adapter, version_digest, total.counts)
