"""Billing exports.

The first export of a period is revision 1, and once it is ready it never changes. Events that arrive later go to the
next revision, which holds only them: the revisions of a period add up to the truth. All of them keep the time zone
of the first. Asking again for a period in which nothing new arrived answers with the revision there is.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import BinaryIO

from sqlalchemy import Select, exists, select

from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import Conflict, InvalidRequest, NotFound
from tenora_platform.control.exports.rendering import CSV_FILE, MANIFEST_FILE
from tenora_platform.control.exports.schemas import ExportTotals, ExportView, NewExport
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.period import Period, PeriodError, month
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Export, ExportStatus, Tenant, UsageEventRow
from tenora_platform.db.session import scoped

FREEZE_JOB = "exports.freeze"
RENDER_JOB = "exports.render"


def list_exports(work: Transaction, tenant_id: uuid.UUID, page: PageRequest) -> Page[ExportView]:
    return paginate(work.session, scoped(Export, tenant_id), Export.created_at, Export.id, page, _view)


def get_export(work: Transaction, tenant_id: uuid.UUID, export_id: uuid.UUID) -> ExportView:
    """Raises NotFound."""
    return _view(_find(work, tenant_id, export_id))


def request_export(work: Transaction, tenant: Tenant, new: NewExport) -> ExportView:
    """Raises InvalidRequest on a period that cannot be."""
    period = _period(new, tenant.timezone)
    # Two callers take turns, so that there is one row for each revision.
    work.session.execute(select(Tenant.id).where(Tenant.id == tenant.id).with_for_update(key_share=True))
    latest = work.session.scalar(_revisions(tenant.id, period).order_by(Export.revision.desc()).limit(1))
    if latest is not None and latest.status == ExportStatus.FAILED:
        latest.status, latest.error = ExportStatus.PENDING, None
        latest.created_at = datetime.now(UTC)  # the sweeper's patience begins anew
        export = latest
    elif latest is not None and (latest.status == ExportStatus.PENDING or not _has_news(work, latest)):
        return _view(latest)
    else:
        export = _next_revision(tenant.id, period, latest)
        work.session.add(export)
        work.session.flush()
    days = {"first_day": str(period.first_day), "last_day": str(period.last_day)}
    record(work, "export.request", export.id, tenant_id=tenant.id, revision=export.revision, **days)
    work.send_job(FREEZE_JOB, export.id)
    return _view(export)


def open_file(work: Transaction, tenant_id: uuid.UUID, export_id: uuid.UUID, file: str) -> BinaryIO:
    """One of the export's files. Raises NotFound, and Conflict while it is not ready."""
    export = _find(work, tenant_id, export_id)
    if export.status != ExportStatus.READY:
        raise Conflict("The export is not ready.", code="not_ready")
    return work.resources.blobs.open(file_key(export.id, file))


def file_key(export_id: uuid.UUID, file: str) -> str:
    assert file in (CSV_FILE, MANIFEST_FILE)
    return f"exports/{export_id}/{file}"


def _period(new: NewExport, zone: str) -> Period:
    try:
        if new.period is not None:
            period = month(new.period, zone)
        else:
            assert new.first_day is not None
            assert new.last_day is not None
            period = Period(new.first_day, new.last_day, zone)
    except PeriodError as error:
        raise InvalidRequest(str(error), param="period" if new.period else "first_day") from error
    if period.span.starts_at > datetime.now(UTC):
        raise InvalidRequest("The period has not begun yet.", param="period" if new.period else "first_day")
    return period


def _next_revision(tenant_id: uuid.UUID, period: Period, latest: Export | None) -> Export:
    zone = latest.timezone if latest else period.zone
    span = Period(period.first_day, period.last_day, zone).span
    return Export(
        tenant_id=tenant_id,
        period_first_day=period.first_day,
        period_last_day=period.last_day,
        timezone=zone,
        starts_at=span.starts_at,
        ends_at=span.ends_at,
        revision=latest.revision + 1 if latest else 1,
        status=ExportStatus.PENDING,
    )


def _revisions(tenant_id: uuid.UUID, period: Period) -> Select[Export]:
    return scoped(Export, tenant_id).where(
        Export.period_first_day == period.first_day, Export.period_last_day == period.last_day
    )


def _has_news(work: Transaction, latest: Export) -> bool:
    news = scoped(UsageEventRow, latest.tenant_id).where(
        UsageEventRow.finished_at >= latest.starts_at,
        UsageEventRow.finished_at < latest.ends_at,
        UsageEventRow.sequence > latest.up_to_sequence,
    )
    return bool(work.session.scalar(select(exists(news))))


def _find(work: Transaction, tenant_id: uuid.UUID, export_id: uuid.UUID) -> Export:
    export = work.session.scalar(scoped(Export, tenant_id).where(Export.id == export_id))
    if export is None:
        raise NotFound("export")
    return export


def _view(export: Export) -> ExportView:
    return ExportView(
        id=export.id,
        status=ExportStatus(export.status),
        first_day=export.period_first_day,
        last_day=export.period_last_day,
        timezone=export.timezone,
        starts_at=export.starts_at,
        ends_at=export.ends_at,
        revision=export.revision,
        sha256=export.sha256,
        rows=export.rows,
        totals=ExportTotals(**export.totals) if export.totals is not None else None,
        error=export.error,
        created_at=export.created_at,
    )
