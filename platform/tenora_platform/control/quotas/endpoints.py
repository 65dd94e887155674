"""HTTP routes of quotas."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import GovernTenant, ReadTenant
from tenora_platform.control.quotas import service
from tenora_platform.control.quotas.schemas import QuotaChange, QuotaView
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/tenants/{tenant_id}/quota", tags=["quotas"], route_class=ControlRoute)


@router.get("", operation_id="getQuota")
def get_quota(inside: ReadTenant) -> QuotaView:
    return service.get_quota(inside.work, inside.tenant.id)


@router.put("", operation_id="setQuota")
def set_quota(inside: GovernTenant, body: QuotaChange) -> QuotaView:
    return service.set_quota(inside.work, inside.tenant.id, body)
