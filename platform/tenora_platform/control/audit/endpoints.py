"""HTTP routes of the audit log."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import Govern
from tenora_platform.control.audit import service
from tenora_platform.control.audit.schemas import AuditView
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/audit", tags=["audit"], route_class=ControlRoute)


@router.get("", operation_id="listAudit")
def list_audit(work: Govern, page: Paging, tenant_id: Id | None = None) -> Page[AuditView]:
    return service.list_entries(work, tenant_id, page)
