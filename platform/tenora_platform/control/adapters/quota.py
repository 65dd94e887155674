"""What a tenant's adapters may take up: how many of them, and how many bytes.

An adapter counts until it is deleted; a version counts with all its bytes while its files have to be there, whether or
not another version has the same ones.
"""

from __future__ import annotations

import uuid

from sqlalchemy import func, select

from tenora_platform.control.adapters.schemas import AdapterQuotaChange, AdapterQuotaView
from tenora_platform.control.adapters.service import live
from tenora_platform.control.adapters.states import LIVE
from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import QuotaExceeded
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Adapter, AdapterVersion, Tenant
from tenora_platform.db.session import ScopedSession, scoped


def view_quota(session: ScopedSession, tenant: Tenant) -> AdapterQuotaView:
    counted = live(tenant.id).with_only_columns(func.count(Adapter.id))
    kept = scoped(AdapterVersion, tenant.id).where(AdapterVersion.status.in_(LIVE))
    return AdapterQuotaView(
        max_adapters=tenant.max_adapters,
        max_bytes=tenant.max_adapter_bytes,
        used_adapters=session.scalar(counted) or 0,
        # A sum of BIGINT is NUMERIC.
        used_bytes=int(session.scalar(kept.with_only_columns(func.sum(AdapterVersion.size_bytes))) or 0),
    )


def set_quota(work: Transaction, tenant: Tenant, change: AdapterQuotaChange) -> AdapterQuotaView:
    """Limits below what is used are taken: nothing goes, and nothing new comes."""
    tenant.max_adapters, tenant.max_adapter_bytes = change.max_adapters, change.max_bytes
    record(work, "adapter_quota.set", tenant.id, tenant_id=tenant.id, **change.model_dump())
    return view_quota(work.session, tenant)


def check_quota(session: ScopedSession, tenant_id: uuid.UUID, *, is_new: bool, new_bytes: int) -> None:
    """Is there room for one more version of `new_bytes`, of a new adapter or of one that is there? Raises
    QuotaExceeded. The answer holds for as long as the caller keeps other uploads of the tenant out."""
    tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
    quota = view_quota(session, tenant)
    if is_new and quota.max_adapters is not None and quota.used_adapters >= quota.max_adapters:
        message = f"The tenant has {quota.used_adapters} adapters and may have {quota.max_adapters}: delete one first."
        raise QuotaExceeded(message, param="max_adapters")
    if quota.max_bytes is not None and quota.used_bytes + new_bytes > quota.max_bytes:
        raise QuotaExceeded(
            f"The tenant's adapters have {quota.used_bytes} bytes and may have {quota.max_bytes}: there is no room for"
            f" {new_bytes} more. Delete versions first.",
            param="max_bytes",
        )
