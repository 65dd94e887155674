"""From usage events to an export's files. What is read depends only on the row's own frozen columns (period, zone,
watermark, prices), so that the same row gives the same bytes at any later time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, DateTime, func, literal, select
from sqlalchemy.orm import Session

from tenora_platform.control.exports.lines import PieceUsage, make_lines, pieces
from tenora_platform.control.exports.money import Counts, PriceBook, UnitPrice
from tenora_platform.control.exports.rendering import Files, Header, render
from tenora_platform.control.period import Period
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
    bounds = literal(starts, ARRAY(DateTime(timezone=True)))
    event = (
        scoped(UsageEventRow, export.tenant_id)
        .where(
            UsageEventRow.finished_at >= export.starts_at,
            UsageEventRow.finished_at < export.ends_at,
            UsageEventRow.sequence > after,
            UsageEventRow.sequence <= export.up_to_sequence,
        )
        # 1 for the first piece: width_bucket's buckets are half-open too.
        .add_columns(func.width_bucket(UsageEventRow.finished_at, bounds).label("piece"))
        .subquery()
    )
    query = select(
        event.c.piece,
        event.c.base_model,
        event.c.adapter,
        event.c.version_digest,
        func.count(),
        func.sum(event.c.prompt_tokens),
        func.sum(event.c.cached_tokens),
        func.sum(event.c.completion_tokens),
    ).group_by(event.c.piece, event.c.base_model, event.c.adapter, event.c.version_digest)
    return [
        PieceUsage(
            piece=piece - 1,
            base_model=base_model,
            adapter=adapter,
            version_digest=digest,
            counts=Counts(requests, int(prompt), int(cached), int(completion)),
        )
        for piece, base_model, adapter, digest, requests, prompt, cached, completion in session.execute(query)
    ]
