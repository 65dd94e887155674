"""Tenants. Their time zone decides where their billing days begin."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import exists, select
from sqlalchemy.exc import IntegrityError

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import Conflict
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.tenants.schemas import NewTenant, TenantChange, TenantView
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Export, Tenant


def list_tenants(work: Transaction, page: PageRequest) -> Page[TenantView]:
    """All tenants that this transaction's scope may see."""
    return paginate(work.session, select(Tenant), Tenant.created_at, Tenant.id, page, view)


def create_tenant(work: Transaction, new: NewTenant) -> TenantView:
    """Raises Conflict when the name is taken."""
    tenant = Tenant(name=new.name, display_name=new.display_name or new.name, timezone=new.timezone)
    work.session.add(tenant)
    try:
        work.session.flush()
    except IntegrityError as error:
        raise Conflict(f"There is a tenant named {new.name!r} already.", param="name") from error
    record(work, "tenant.create", tenant.id, tenant_id=tenant.id, name=tenant.name, timezone=tenant.timezone)
    return view(tenant)


def change_tenant(work: Transaction, tenant: Tenant, change: TenantChange) -> TenantView:
    """Raises Conflict on a new time zone once the tenant has an export: its days must not be cut in two ways."""
    changed: dict[str, object] = {}
    if change.display_name is not None and change.display_name != tenant.display_name:
        tenant.display_name = changed["display_name"] = change.display_name
    if change.timezone is not None and change.timezone != tenant.timezone:
        if work.session.scalar(select(exists().where(Export.tenant_id == tenant.id))):
            raise Conflict("The time zone is fixed once there is a billing export.", param="timezone")
        tenant.timezone = changed["timezone"] = change.timezone
    if change.disabled is not None and change.disabled != (tenant.disabled_at is not None):
        tenant.disabled_at = datetime.now(UTC) if change.disabled else None
        changed["disabled"] = change.disabled
    if changed:
        record(work, "tenant.change", tenant.id, tenant_id=tenant.id, **changed)
        work.publish(Change(ChangeKind.TENANT, tenant.id))
    return view(tenant)


def view(tenant: Tenant) -> TenantView:
    return TenantView(
        id=tenant.id,
        name=tenant.name,
        display_name=tenant.display_name,
        timezone=tenant.timezone,
        created_at=tenant.created_at,
        disabled_at=tenant.disabled_at,
    )
