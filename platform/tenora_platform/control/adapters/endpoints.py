"""HTTP routes of adapters."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from tenora_platform.control.access import GovernTenant, Held, MayWrite, ReadTenant, WriteTenant
from tenora_platform.control.adapters import quota, service, serving
from tenora_platform.control.adapters.receiving import receive_upload, receiving
from tenora_platform.control.adapters.schemas import (
    AdapterDetail,
    AdapterQuotaChange,
    AdapterQuotaView,
    AdapterView,
    CanaryShare,
    Promotion,
    UploadAccepted,
    VersionView,
)
from tenora_platform.control.adapters.uploading import accept_upload
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/tenants/{tenant_id}/adapters", tags=["adapters"], route_class=ControlRoute)
quotas = APIRouter(prefix="/tenants/{tenant_id}/adapter-quota", tags=["adapters"], route_class=ControlRoute)
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
                        "promote": {
                            "type": "string",
                            "enum": ["true", "false"],
                            "description": "Whether the name serves it as soon as it is ready. The default is true.",
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


@quotas.get("", operation_id="getAdapterQuota")
def get_adapter_quota(inside: ReadTenant) -> AdapterQuotaView:
    return quota.view_quota(inside.work.session, inside.tenant)


@quotas.put("", operation_id="setAdapterQuota")
def set_adapter_quota(inside: GovernTenant, body: AdapterQuotaChange) -> AdapterQuotaView:
    return quota.set_quota(inside.work, inside.tenant, body)


@router.get("", operation_id="listAdapters")
def list_adapters(inside: ReadTenant, page: Paging) -> Page[AdapterView]:
    return service.list_adapters(inside.work, inside.tenant.id, page)


@uploads.post("", operation_id="uploadAdapter", status_code=202, openapi_extra=_UPLOAD_BODY)
async def upload_adapter(tenant_id: Id, caller: MayWrite, held: Held, request: Request) -> UploadAccepted:
    """Asynchronous, because it reads a body that may be large and slow; what blocks runs in a thread."""
    with receiving(tenant_id):
        async with receive_upload(request, held.settings.max_upload_bytes) as upload:
            return await run_in_threadpool(accept_upload, held, caller.username, tenant_id, upload)


@router.get("/{adapter_id}", operation_id="getAdapter")
def get_adapter(inside: ReadTenant, adapter_id: Id) -> AdapterDetail:
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.delete("/{adapter_id}", operation_id="deleteAdapter", status_code=204)
def delete_adapter(inside: WriteTenant, adapter_id: Id) -> None:
    service.delete_adapter(inside.work, inside.tenant.id, adapter_id)


@router.post("/{adapter_id}/promote", operation_id="promoteVersion")
def promote_version(inside: WriteTenant, adapter_id: Id, body: Promotion) -> AdapterDetail:
    serving.promote(inside.work, inside.tenant.id, adapter_id, body.version)
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.post("/{adapter_id}/roll-back", operation_id="rollBackAdapter")
def roll_back_adapter(inside: WriteTenant, adapter_id: Id) -> AdapterDetail:
    """Ends the canary if there is one; else serves the version that served before."""
    serving.roll_back(inside.work, inside.tenant.id, adapter_id)
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.put("/{adapter_id}/canary", operation_id="setCanary")
def set_canary(inside: WriteTenant, adapter_id: Id, body: CanaryShare) -> AdapterDetail:
    serving.start_canary(inside.work, inside.tenant.id, adapter_id, body.version, body.percent)
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.delete("/{adapter_id}/canary", operation_id="endCanary")
def end_canary(inside: WriteTenant, adapter_id: Id) -> AdapterDetail:
    serving.end_canary(inside.work, inside.tenant.id, adapter_id)
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.post("/{adapter_id}/versions/{version_id}/retire", operation_id="retireVersion")
def retire_version(inside: WriteTenant, adapter_id: Id, version_id: Id) -> AdapterDetail:
    """It takes no new requests; those in flight end on it. Its files stay until it is deleted."""
    serving.retire(inside.work, inside.tenant.id, adapter_id, version_id)
    return service.get_adapter(inside.work, inside.tenant.id, adapter_id)


@router.delete("/{adapter_id}/versions/{version_id}", operation_id="deleteVersion", status_code=204)
def delete_version(inside: WriteTenant, adapter_id: Id, version_id: Id) -> None:
    serving.delete_version(inside.work, inside.tenant.id, adapter_id, version_id)


@router.get("/{adapter_id}/versions/{version_id}", operation_id="getVersion")
def get_version(inside: ReadTenant, adapter_id: Id, version_id: Id) -> VersionView:
    return service.get_version(inside.work, inside.tenant.id, adapter_id, version_id)
