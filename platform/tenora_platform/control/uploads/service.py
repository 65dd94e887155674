"""An upload from its announcement to its last chunk. Any process may take any chunk: they lie in the blob store.

    uploads/<id>/<number of the chunk>

A chunk counts once its row says so. One that was stored in vain, because the process died in between, is overwritten by
the next with its number, or goes with the upload.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Select, func

from tenora_adapters.blobs import BlobStore
from tenora_adapters.manifest import WEIGHTS_FILE
from tenora_platform.control.adapters.uploading import Wanted, check_wanted
from tenora_platform.control.errors import Conflict, NotFound, TooLarge
from tenora_platform.control.failures import FailureDetail
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import Transaction, transaction
from tenora_platform.control.uploads.limits import make_room_for_one
from tenora_platform.control.uploads.schemas import NewUpload, UploadFile, UploadStatus, UploadView
from tenora_platform.db.models import AdapterUpload
from tenora_platform.db.session import PLATFORM, scoped

MAX_CHUNK_BYTES: Final = 16 * 2**20
MAX_CHUNKS: Final = 4096
KEEP_UNFINISHED_FOR: Final = timedelta(hours=24)
# An attempt to finish that has not ended by then has died, and another one may begin.
FINISH_WITHIN: Final = timedelta(minutes=10)


def create_upload(resources: Resources, actor: str, tenant_id: uuid.UUID, new: NewUpload) -> UploadView:
    """Raises InvalidRequest, Rejected, QuotaExceeded, TooLarge, TooManyRequests."""
    size = sum(file.size for file in new.files)
    if size > resources.settings.max_upload_bytes:
        raise TooLarge(f"An upload may have at most {resources.settings.max_upload_bytes} bytes.")
    with resources.sessions(scope=tenant_id) as session:
        # Of an archive it is not known yet what it holds.
        weights = sum(file.size for file in new.files if file.filename == WEIGHTS_FILE)
        check_wanted(session, tenant_id, wanted_by(new), new_bytes=max(weights, 1))
    with transaction(resources, PLATFORM, actor) as work:
        make_room_for_one(work, tenant_id)
        upload = AdapterUpload(
            tenant_id=tenant_id,
            name=new.name,
            base_model=new.base_model,
            confirm_base=new.confirm_base,
            promote=new.promote,
            files=[file.model_dump() for file in new.files],
            size_bytes=size,
            received_bytes=0,
            num_chunks=0,
            expires_at=datetime.now(UTC) + KEEP_UNFINISHED_FOR,
        )
        work.session.add(upload)
        work.session.flush()
        return view(upload)


def list_uploads(work: Transaction, tenant_id: uuid.UUID, page: PageRequest) -> Page[UploadView]:
    return paginate(work.session, _kept(tenant_id), AdapterUpload.created_at, AdapterUpload.id, page, view)


def get_upload(work: Transaction, tenant_id: uuid.UUID, upload_id: uuid.UUID) -> UploadView:
    """Raises NotFound."""
    return view(find_upload(work, tenant_id, upload_id))


def expect_chunk(
    resources: Resources, actor: str, tenant_id: uuid.UUID, upload_id: uuid.UUID, offset: int, size: int
) -> None:
    """Would a chunk be taken? Asked before it is received. Raises NotFound, Conflict, TooLarge."""
    with transaction(resources, tenant_id, actor) as work:
        _check_chunk(find_upload(work, tenant_id, upload_id), offset, size)


def add_chunk(
    resources: Resources, actor: str, tenant_id: uuid.UUID, upload_id: uuid.UUID, offset: int, chunk: Path
) -> UploadView:
    """Store what was received. Raises NotFound, Conflict, TooLarge, BlobUnavailable."""
    size = chunk.stat().st_size
    with transaction(resources, tenant_id, actor) as work:
        upload = find_upload(work, tenant_id, upload_id, lock=True)
        _check_chunk(upload, offset, size)
        if size:
            with chunk.open("rb") as data:
                resources.blobs.put(chunk_key(upload.id, upload.num_chunks), data)
            upload.num_chunks += 1
            upload.received_bytes += size
            upload.expires_at = datetime.now(UTC) + KEEP_UNFINISHED_FOR
        return view(upload)


def cancel_upload(work: Transaction, tenant_id: uuid.UUID, upload_id: uuid.UUID) -> None:
    """Raises NotFound, Conflict."""
    upload = find_upload(work, tenant_id, upload_id, lock=True)
    if status_of(upload) is UploadStatus.FINISHING:
        raise Conflict("The upload is being finished: ask again in a moment.", code="busy")
    remove(work, upload)


def remove(work: Transaction, upload: AdapterUpload) -> None:
    """The caller holds the row. Raises BlobError."""
    remove_chunks(work.resources.blobs, upload.id)
    work.session.delete(upload)


def find_upload(work: Transaction, tenant_id: uuid.UUID, upload_id: uuid.UUID, *, lock: bool = False) -> AdapterUpload:
    """Raises NotFound."""
    query = _kept(tenant_id).where(AdapterUpload.id == upload_id)
    upload = work.session.scalar(query.with_for_update() if lock else query)
    if upload is None:
        raise NotFound("upload")
    return upload


def wanted_by(new: NewUpload | AdapterUpload) -> Wanted:
    return Wanted(name=new.name, base_model=new.base_model, base_confirmed=new.confirm_base, promote=new.promote)


def files_of(upload: AdapterUpload) -> Sequence[UploadFile]:
    return [UploadFile.model_validate(file) for file in upload.files]


def status_of(upload: AdapterUpload) -> UploadStatus:
    if upload.version_id is not None:
        return UploadStatus.FINISHED
    if upload.error is not None:
        return UploadStatus.REFUSED
    if upload.finishing_at is not None and upload.finishing_at > datetime.now(UTC) - FINISH_WITHIN:
        return UploadStatus.FINISHING
    return UploadStatus.RECEIVING


def chunk_key(upload_id: uuid.UUID, number: int) -> str:
    return f"{_folder(upload_id)}/{number:06d}"


def remove_chunks(blobs: BlobStore, upload_id: uuid.UUID) -> None:
    """Raises BlobError."""
    for key in blobs.keys(_folder(upload_id)):
        blobs.delete(key)


def view(upload: AdapterUpload) -> UploadView:
    return UploadView(
        id=upload.id,
        name=upload.name,
        base_model=upload.base_model,
        confirm_base=upload.confirm_base,
        promote=upload.promote,
        files=list(files_of(upload)),
        size=upload.size_bytes,
        offset=upload.received_bytes,
        status=status_of(upload),
        max_chunk_bytes=MAX_CHUNK_BYTES,
        created_at=upload.created_at,
        expires_at=upload.expires_at,
        adapter_id=upload.adapter_id,
        version_id=upload.version_id,
        error=None if upload.error is None else FailureDetail.model_validate(upload.error),
    )


def _folder(upload_id: uuid.UUID) -> str:
    return f"uploads/{upload_id}"


def _kept(tenant_id: uuid.UUID) -> Select[AdapterUpload]:
    return scoped(AdapterUpload, tenant_id).where(AdapterUpload.expires_at > func.now())


def _check_chunk(upload: AdapterUpload, offset: int, size: int) -> None:
    """Raises Conflict, TooLarge."""
    if (status := status_of(upload)) is not UploadStatus.RECEIVING:
        raise Conflict(f"The upload is {status}: it takes no more chunks.", code="wrong_state")
    if offset != upload.received_bytes:
        message = f"The next chunk starts at {upload.received_bytes}, not at {offset}."
        error = Conflict(message, code="wrong_offset", param="Upload-Offset")
        error.headers["Upload-Offset"] = str(upload.received_bytes)
        raise error
    if size > MAX_CHUNK_BYTES:
        raise TooLarge(f"A chunk may have at most {MAX_CHUNK_BYTES} bytes.")
    if upload.received_bytes + size > upload.size_bytes:
        raise TooLarge(f"The upload has {upload.size_bytes} bytes, and this chunk would pass its end.")
    if upload.num_chunks >= MAX_CHUNKS:
        message = f"An upload has at most {MAX_CHUNKS} chunks: cancel it, and send larger ones."
        raise Conflict(message, code="too_many_chunks")
