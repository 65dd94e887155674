"""The audit log: every change writes one row, in the transaction that makes the change."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import select

from tenora_platform.control.audit.schemas import AuditView
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import AuditEntry


def record(
    work: Transaction, action: str, target: uuid.UUID | str, *, tenant_id: uuid.UUID | None, **detail: Any
) -> None:
    """Note that the transaction's actor did `action` ("api_key.revoke") to `target`. Never give it a secret."""
    entry = AuditEntry(actor=work.actor, tenant_id=tenant_id, action=action, target=str(target), detail=detail)
    work.session.add(entry)


def list_entries(work: Transaction, tenant_id: uuid.UUID | None, page: PageRequest) -> Page[AuditView]:
    query = select(AuditEntry)
    if tenant_id is not None:
        query = query.where(AuditEntry.tenant_id == tenant_id)
    return paginate(work.session, query, AuditEntry.at, AuditEntry.id, page, _view)


def _view(entry: AuditEntry) -> AuditView:
    return AuditView(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        tenant_id=entry.tenant_id,
        action=entry.action,
        target=entry.target,
        detail=entry.detail,
    )
