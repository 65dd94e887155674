"""HTTP routes of tenants."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import Govern, GovernTenant, See, SeeTenant
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute
from tenora_platform.control.tenants import service
from tenora_platform.control.tenants.schemas import NewTenant, TenantChange, TenantView

router = APIRouter(prefix="/tenants", tags=["tenants"], route_class=ControlRoute)


@router.get("", operation_id="listTenants")
def list_tenants(work: See, page: Paging) -> Page[TenantView]:
    return service.list_tenants(work, page)


@router.post("", operation_id="createTenant", status_code=201)
def create_tenant(work: Govern, body: NewTenant) -> TenantView:
    return service.create_tenant(work, body)


@router.get("/{tenant_id}", operation_id="getTenant")
def get_tenant(inside: SeeTenant) -> TenantView:
    return service.view(inside.tenant)


@router.patch("/{tenant_id}", operation_id="changeTenant")
def change_tenant(inside: GovernTenant, body: TenantChange) -> TenantView:
    return service.change_tenant(inside.work, inside.tenant, body)
