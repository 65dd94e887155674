"""Quotas of a tenant. The gateways hear of a change after it has committed (design, flow 4)."""

from __future__ import annotations

import uuid

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.audit.service import record
from tenora_platform.control.quotas.schemas import QuotaChange, QuotaView
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Quota
from tenora_platform.db.session import scoped


def get_quota(work: Transaction, tenant_id: uuid.UUID) -> QuotaView:
    row = work.session.scalar(scoped(Quota, tenant_id))
    if row is None:
        return QuotaView(requests_per_minute=None, tokens_per_minute=None, updated_at=None)
    return QuotaView(
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        updated_at=row.updated_at,
    )


def set_quota(work: Transaction, tenant_id: uuid.UUID, change: QuotaChange) -> QuotaView:
    limits = change.model_dump()
    statement = insert(Quota).values(tenant_id=tenant_id, **limits)
    statement = statement.on_conflict_do_update(index_elements=["tenant_id"], set_={**limits, "updated_at": func.now()})
    work.session.execute(statement)
    record(work, "quota.set", tenant_id, tenant_id=tenant_id, **limits)
    work.publish(Change(ChangeKind.QUOTA, tenant_id))
    return get_quota(work, tenant_id)
