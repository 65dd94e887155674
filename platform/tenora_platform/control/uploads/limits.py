"""How many uploads may be unfinished at a time, each of which may lie in the blob store with all its bytes."""

from __future__ import annotations

import uuid
from typing import Final

from sqlalchemy import func, select, text

from tenora_platform.control.errors import TooManyRequests
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import AdapterUpload

_RETRY_AFTER_S: Final = 60
_LOCK: Final = 7_301_965_001  # the platform's own advisory lock for this, which nothing else takes


def make_room_for_one(work: Transaction, tenant_id: uuid.UUID) -> None:
    """Raises TooManyRequests. Holds off other new uploads until the transaction, which has to see all tenants, ends."""
    work.session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    unfinished = select(func.count(), func.count().filter(AdapterUpload.tenant_id == tenant_id)).where(
        AdapterUpload.version_id.is_(None), AdapterUpload.error.is_(None), AdapterUpload.expires_at > func.now()
    )
    of_all, of_tenant = work.session.execute(unfinished).one()
    settings = work.resources.settings
    if of_tenant >= settings.max_uploads_per_tenant:
        message = f"{of_tenant} uploads of this tenant are unfinished: finish or cancel one."
        raise TooManyRequests(message, code="too_many_uploads", retry_after=_RETRY_AFTER_S)
    if of_all >= settings.max_uploads:
        message = "The platform is busy with other uploads. Try again in a minute."
        raise TooManyRequests(message, code="too_many_uploads", retry_after=_RETRY_AFTER_S)
