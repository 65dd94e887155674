"""From chunks to a version: exactly one, however often finishing is asked for, by whatever process."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tenora_adapters.blobs import BlobNotFound, BlobStore
from tenora_adapters.errors import AdapterRejected
from tenora_platform.control.adapters.receiving import ReceivedFile
from tenora_platform.control.adapters.schemas import UploadAccepted
from tenora_platform.control.adapters.service import accepted_upload
from tenora_platform.control.adapters.uploading import make_version, refusal
from tenora_platform.control.errors import Conflict, Rejected
from tenora_platform.control.failures import FailureDetail
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import Transaction, transaction
from tenora_platform.control.uploads.schemas import UploadFile, UploadStatus
from tenora_platform.control.uploads.service import (
    KEEP_UNFINISHED_FOR,
    chunk_key,
    files_of,
    find_upload,
    remove_chunks,
    status_of,
    wanted_by,
)
from tenora_platform.db.models import AdapterUpload

KEEP_ENDED_FOR: Final = timedelta(hours=1)
_PIECE: Final = 1 << 20


def finish_upload(resources: Resources, actor: str, tenant_id: uuid.UUID, upload_id: uuid.UUID) -> UploadAccepted:
    """Asked again after success or refusal, it gives the same answer.

    Raises NotFound, Conflict (QuotaExceeded: make room, and ask again), Rejected, BlobUnavailable.
    """
    with transaction(resources, tenant_id, actor) as work:
        upload = find_upload(work, tenant_id, upload_id, lock=True)
        if upload.adapter_id is not None and upload.version_id is not None:
            return accepted_upload(work, tenant_id, upload.adapter_id, upload.version_id)
        _claim(upload)

    def made(work: Transaction, accepted: UploadAccepted) -> None:
        # An attempt that was taken for dead may come to its end all the same: then the first one counts.
        upload = find_upload(work, tenant_id, upload_id, lock=True)
        if upload.version_id is not None:
            raise Conflict("The upload was finished meanwhile: ask again.", code="busy")
        upload.adapter_id, upload.version_id = accepted.adapter.id, accepted.version.id
        upload.expires_at = datetime.now(UTC) + KEEP_ENDED_FOR

    try:
        with tempfile.TemporaryDirectory(prefix="tenora-upload-") as folder:
            files = _assemble(resources.blobs, upload, Path(folder))
            accepted = make_version(
                resources, actor, tenant_id, wanted_by(upload), Path(folder), files, in_transaction=made
            )
    except Rejected as error:
        _release(resources, actor, tenant_id, upload_id, error)
        remove_chunks(resources.blobs, upload_id)
        raise
    except BaseException:
        _release(resources, actor, tenant_id, upload_id, None)
        raise
    remove_chunks(resources.blobs, upload_id)
    return accepted


def _claim(upload: AdapterUpload) -> None:
    """Raises Conflict, or Rejected again."""
    if upload.error is not None:
        found = FailureDetail.model_validate(upload.error)
        report = {} if found.report is None else found.report.model_dump()
        raise Rejected(found.message, code=found.code, param=found.param, report=report)
    if status_of(upload) is UploadStatus.FINISHING:
        raise Conflict("The upload is being finished: ask again in a moment.", code="busy")
    if upload.received_bytes < upload.size_bytes:
        message = f"{upload.received_bytes} of {upload.size_bytes} bytes have arrived: send the rest first."
        raise Conflict(message, code="incomplete")
    upload.finishing_at = datetime.now(UTC)
    upload.expires_at = upload.finishing_at + KEEP_UNFINISHED_FOR


def _release(
    resources: Resources, actor: str, tenant_id: uuid.UUID, upload_id: uuid.UUID, error: Rejected | None
) -> None:
    """The attempt is over; with an error, for good."""
    with transaction(resources, tenant_id, actor) as work:
        upload = find_upload(work, tenant_id, upload_id, lock=True)
        upload.finishing_at = None
        if error is not None:
            upload.error = {"code": error.code, "message": error.message, "param": error.param, "report": error.report}
            upload.expires_at = datetime.now(UTC) + KEEP_ENDED_FOR


def _assemble(blobs: BlobStore, upload: AdapterUpload, folder: Path) -> list[ReceivedFile]:
    """The files, as they were announced. Raises Rejected, BlobUnavailable."""
    try:
        return list(_cut(_pieces(blobs, upload), files_of(upload), folder))
    except AdapterRejected as error:
        raise refusal(error) from error


def _cut(pieces: Iterator[bytes], files: Sequence[UploadFile], folder: Path) -> Iterator[ReceivedFile]:
    """Raises AdapterRejected."""
    rest = b""
    for number, file in enumerate(files):
        path, missing, sha256 = folder / f"part-{number}", file.size, hashlib.sha256()
        with path.open("xb") as target:
            while missing:
                rest = rest or next(pieces, b"")
                if not rest:
                    raise _damaged()
                piece, rest = rest[:missing], rest[missing:]
                target.write(piece)
                sha256.update(piece)
                missing -= len(piece)
        if file.sha256 not in (None, sha256.hexdigest()):
            message = f"{file.filename} does not have the SHA-256 that was announced for it: send it again"
            raise AdapterRejected(message, param=file.filename, code="wrong_checksum")
        yield ReceivedFile(file.filename, path)


def _pieces(blobs: BlobStore, upload: AdapterUpload) -> Iterator[bytes]:
    """Raises AdapterRejected, BlobUnavailable."""
    for number in range(upload.num_chunks):
        try:
            chunk = blobs.open(chunk_key(upload.id, number))
        except BlobNotFound as error:
            raise _damaged() from error
        with chunk:
            while piece := chunk.read(_PIECE):
                yield piece


def _damaged() -> AdapterRejected:
    return AdapterRejected("what was stored of the upload is damaged: send it again", code="damaged")
