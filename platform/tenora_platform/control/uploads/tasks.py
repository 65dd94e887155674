"""What is left of uploads that nobody went on with, and of those that have ended, goes."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from sqlalchemy import func, select

from tenora_adapters.blobs import BlobError
from tenora_platform.control.jobs import Periodic
from tenora_platform.control.transaction import Transaction
from tenora_platform.control.uploads.service import remove
from tenora_platform.db.models import AdapterUpload

_BATCH: Final = 50  # locks are held while chunks are removed
_log = logging.getLogger(__name__)


def sweep(work: Transaction) -> None:
    expired = select(AdapterUpload).where(AdapterUpload.expires_at <= func.now()).order_by(AdapterUpload.expires_at)
    for upload in work.session.scalars(expired.limit(_BATCH).with_for_update(skip_locked=True)).all():
        try:
            remove(work, upload)
        except BlobError as error:
            _log.warning("chunks of upload %s could not be removed, and stay for the next run: %s", upload.id, error)


PERIODIC: Final = (Periodic("uploads.sweep", sweep, every=timedelta(minutes=5)),)
