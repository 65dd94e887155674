"""HTTP routes of adapters."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from tenora_platform.control.access import Held, MayWrite, ReadTenant, WriteTenant
from tenora_platform.control.adapters import service
from tenora_platform.control.adapters.receiving import receive_upload
from tenora_platform.control.adapters.schemas import AdapterDetail, AdapterView, UploadAccepted, VersionView
from tenora_platform.control.adapters.uploading import accept_upload
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/tenants/{tenant_id}/adapters", tags=["adapters"], route_class=ControlRoute)
# Not a ControlRoute: it bounds its body itself, as it comes in.
uploads = APIRouter(prefix="/tenants/{tenant_id}/adapters", tags=["adapters"])
_UPLOAD_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        "name": {"type": "string", "description": "Again the same name: its next version."},
                        "base_model": {"type": "string", "description": "May be left out where there is only one."},
                        "confirm_base": {
                            "type": "string",
                            "enum": ["true", "false"],
                            "description": "That an adapter whose config names no base model was made for this one.",
                        },
                        "files": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "One zip or tar, or adapter_config.json and adapter_model.safetensors.",
                        },
                    },
                }
            }
        },
    }
}


@router.get("", operation_id="listAdapters")
def list_adapters(inside: ReadTenant, page: Paging) -> Page[AdapterView]:
    return service.list_adapters(inside.work, inside.tenant.id, page)


@uploads.post("", operation_id="uploadAdapter", status_code=202, openapi_extra=_UPLOAD_BODY)
async def upload_adapter(tenant_id: Id, caller: MayWrite, held: Held, request: Request) -> UploadAccepted:
    """Asynchronous, because it reads a body that may be large and slow; what blocks runs in a thread."""
    async with receive_upload(request, held.settings.max_upload_bytes) as upload:
        return await run_in_threadpool(accept_upload, held, caller, tenant_id, upload)


@router.get("/{adapter_id}", operation_id="getAdapter")
def get_adapter(inside: ReadTenant, adapter_id: Id) -> AdapterDetail:
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.delete("/{adapter_id}", operation_id="deleteAdapter", status_code=204)
def delete_adapter(inside: WriteTenant, adapter_id: Id) -> None:
    service.delete_adapter(inside.work, inside.tenant.id, adapter_id)


@router.get("/{adapter_id}/versions/{version_id}", operation_id="getVersion")
def get_version(inside: ReadTenant, adapter_id: Id, version_id: Id) -> VersionView:
    return service.get_version(inside.work, inside.tenant.id, adapter_id, version_id)
