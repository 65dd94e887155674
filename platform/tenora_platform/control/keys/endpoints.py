"""HTTP routes of API keys."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import ReadTenant, WriteTenant
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.keys import service
from tenora_platform.control.keys.schemas import KeyView, KeyWithSecret, NewKey
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/tenants/{tenant_id}/keys", tags=["keys"], route_class=ControlRoute)


@router.get("", operation_id="listKeys")
def list_keys(inside: ReadTenant, page: Paging) -> Page[KeyView]:
    return service.list_keys(inside.work, inside.tenant.id, page)


@router.post("", operation_id="createKey", status_code=201)
def create_key(inside: WriteTenant, body: NewKey) -> KeyWithSecret:
    return service.create_key(inside.work, inside.tenant.id, body)


@router.delete("/{key_id}", operation_id="revokeKey", status_code=204)
def revoke_key(inside: WriteTenant, key_id: Id) -> None:
    service.revoke_key(inside.work, inside.tenant.id, key_id)
