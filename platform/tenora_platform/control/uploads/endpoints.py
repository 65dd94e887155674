"""HTTP routes of uploads that come in chunks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool

from tenora_platform.control.access import Held, MayWrite, ReadTenant, WriteTenant
from tenora_platform.control.adapters.receiving import receive_bytes, receiving
from tenora_platform.control.adapters.schemas import UploadAccepted
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute
from tenora_platform.control.uploads import service
from tenora_platform.control.uploads.finishing import finish_upload
from tenora_platform.control.uploads.schemas import NewUpload, UploadView

_PREFIX: Final = "/tenants/{tenant_id}/uploads"
router = APIRouter(prefix=_PREFIX, tags=["uploads"], route_class=ControlRoute)
# Not a ControlRoute: it bounds its body itself, as it comes in.
chunks = APIRouter(prefix=_PREFIX, tags=["uploads"])
_CHUNK: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("", operation_id="listUploads")
def list_uploads(inside: ReadTenant, page: Paging) -> Page[UploadView]:
    """Those that are unfinished, and for an hour those that have ended."""
    return service.list_uploads(inside.work, inside.tenant.id, page)


@router.post("", operation_id="createUpload", status_code=201)
def create_upload(tenant_id: Id, caller: MayWrite, held: Held, body: NewUpload) -> UploadView:
    return service.create_upload(held, caller.username, tenant_id, body)


@router.get("/{upload_id}", operation_id="getUpload")
def get_upload(inside: ReadTenant, upload_id: Id) -> UploadView:
    return service.get_upload(inside.work, inside.tenant.id, upload_id)


@chunks.patch("/{upload_id}", operation_id="sendUploadChunk", openapi_extra=_CHUNK)
async def send_upload_chunk(
    tenant_id: Id,
    upload_id: Id,
    caller: MayWrite,
    held: Held,
    request: Request,
    upload_offset: Annotated[int, Header(ge=0, description="Where in the upload this chunk begins.")],
) -> UploadView:
    """The next bytes. Of a chunk that is cut off, what has arrived is kept."""
    where = (held, caller.username, tenant_id, upload_id, upload_offset)
    declared = request.headers.get("content-length", "")
    size = int(declared[:20]) if declared.isascii() and declared.isdigit() else 0
    await run_in_threadpool(service.expect_chunk, *where, size)
    with receiving(tenant_id), tempfile.TemporaryDirectory(prefix="tenora-upload-") as folder:
        chunk = Path(folder) / "chunk"
        await receive_bytes(request, chunk, service.MAX_CHUNK_BYTES)
        return await run_in_threadpool(service.add_chunk, *where, chunk)


@router.post("/{upload_id}/finish", operation_id="finishUpload", status_code=202)
def finish(tenant_id: Id, upload_id: Id, caller: MayWrite, held: Held) -> UploadAccepted:
    """Check what was sent and make a version of it. Asked again, it gives the same answer."""
    return finish_upload(held, caller.username, tenant_id, upload_id)


@router.delete("/{upload_id}", operation_id="cancelUpload", status_code=204)
def cancel_upload(inside: WriteTenant, upload_id: Id) -> None:
    service.cancel_upload(inside.work, inside.tenant.id, upload_id)
