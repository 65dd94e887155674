"""HTTP routes of billing exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from tenora_platform.control.access import CloseBooks, ReadBooks
from tenora_platform.control.exports import service
from tenora_platform.control.exports.rendering import CSV_FILE, MANIFEST_FILE
from tenora_platform.control.exports.schemas import ExportView, NewExport
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/tenants/{tenant_id}/exports", tags=["exports"], route_class=ControlRoute)
_CSV: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
_JSON: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}


@router.get("", operation_id="listExports")
def list_exports(inside: ReadBooks, page: Paging) -> Page[ExportView]:
    return service.list_exports(inside.work, inside.tenant.id, page)


@router.post("", operation_id="requestExport", status_code=202)
def request_export(inside: CloseBooks, body: NewExport) -> ExportView:
    return service.request_export(inside.work, inside.tenant, body)


@router.get("/{export_id}", operation_id="getExport")
def get_export(inside: ReadBooks, export_id: Id) -> ExportView:
    return service.get_export(inside.work, inside.tenant.id, export_id)


@router.get("/{export_id}/file", operation_id="downloadExport", response_class=StreamingResponse, responses=_CSV)
def download(inside: ReadBooks, export_id: Id) -> StreamingResponse:
    file = service.open_file(inside.work, inside.tenant.id, export_id, CSV_FILE)
    view = service.get_export(inside.work, inside.tenant.id, export_id)
    name = f"{inside.tenant.name}_{view.first_day}_{view.last_day}_r{view.revision}.csv"
    return StreamingResponse(
        _chunks(file),
        media_type="text/csv",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "ETag": f'"{view.sha256}"',
        },
    )


@router.get("/{export_id}/manifest", operation_id="getManifest", response_class=StreamingResponse, responses=_JSON)
def manifest(inside: ReadBooks, export_id: Id) -> StreamingResponse:
    file = service.open_file(inside.work, inside.tenant.id, export_id, MANIFEST_FILE)
    return StreamingResponse(_chunks(file), media_type="application/json")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(1 << 16):
            yield chunk
