"""The two steps of an export, each a transaction that can be run any number of times.

freeze   decide what belongs to it: the newest usage event, and the prices
render   write the files, and say that they are there
"""

from __future__ import annotations

import io
import uuid
from datetime import timedelta
from typing import Final

from sqlalchemy import func, select, text, update

from tenora_platform.control.audit.service import record
from tenora_platform.control.exports.making import make_files, read_price_book, watermark_before
from tenora_platform.control.exports.rendering import CSV_FILE, MANIFEST_FILE
from tenora_platform.control.exports.service import FREEZE_JOB, RENDER_JOB, file_key
from tenora_platform.control.jobs import Job, Periodic
from tenora_platform.control.period import Span
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Export, ExportStatus, Tenant, UsageEventRow

RESEND_AFTER: Final = timedelta(minutes=2)
GIVE_UP_AFTER: Final = timedelta(hours=2)


def freeze(work: Transaction, export_id: uuid.UUID) -> None:
    export = _lock_pending(work, export_id)
    if export is None:
        return
    if export.up_to_sequence is None:
        # Sequence numbers are given before their transactions commit. With this lock held, every insert that has
        # taken a number has also ended, and every later one gets a higher number: nothing can turn up below the
        # watermark afterwards. The lock waits for inserts in flight, and is gone milliseconds later.
        work.session.execute(text("SET LOCAL lock_timeout = '5s'"))
        work.session.execute(text("LOCK TABLE usage_events IN SHARE MODE"))
        newest = work.session.scalar(
            select(func.max(UsageEventRow.sequence)).where(UsageEventRow.tenant_id == export.tenant_id)
        )
        export.up_to_sequence = max(newest or 0, watermark_before(work.session, export))
        book = read_price_book(work.session).during(Span(export.starts_at, export.ends_at))
        export.prices = [price.to_json() for price in book.prices]
    work.send_job(RENDER_JOB, export.id)


def render(work: Transaction, export_id: uuid.UUID) -> None:
    export = _lock_pending(work, export_id)
    if export is None or export.up_to_sequence is None:
        return
    files = make_files(work.session, export, work.session.get_one(Tenant, export.tenant_id))
    for file, content in ((CSV_FILE, files.csv), (MANIFEST_FILE, files.manifest)):
        work.resources.blobs.put(file_key(export.id, file), io.BytesIO(content))
    export.status = ExportStatus.READY
    export.sha256, export.rows, export.totals = files.sha256, files.rows, files.totals
    record(work, "export.ready", export.id, tenant_id=export.tenant_id, sha256=files.sha256, revision=export.revision)


def sweep(work: Transaction) -> None:
    """Find exports whose job was lost: send it again, and after GIVE_UP_AFTER say that it failed."""
    pending = Export.status == ExportStatus.PENDING
    work.session.execute(
        update(Export)
        .where(pending, Export.created_at < func.now() - GIVE_UP_AFTER)
        .values(status=ExportStatus.FAILED, error="The export could not be made. Ask for it again.")
    )
    lost = select(Export.id).where(pending, Export.created_at < func.now() - RESEND_AFTER)
    for export_id in work.session.scalars(lost):
        work.send_job(FREEZE_JOB, export_id)


def _lock_pending(work: Transaction, export_id: uuid.UUID) -> Export | None:
    """The row, to this transaction alone. None when it is done, gone, or in the hands of another worker."""
    query = select(Export).where(Export.id == export_id, Export.status == ExportStatus.PENDING)
    return work.session.scalar(query.with_for_update(skip_locked=True))


JOBS: Final = (Job(FREEZE_JOB, freeze), Job(RENDER_JOB, render))
PERIODIC: Final = (Periodic("exports.sweep", sweep, every=timedelta(minutes=1)),)
