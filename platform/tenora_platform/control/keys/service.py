"""API keys of a tenant: shown once, stored as a hash, revoked within the bound that `changes.py` states."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import InvalidRequest, NotFound
from tenora_platform.control.fields import Page
from tenora_platform.control.keys.schemas import KeyView, KeyWithSecret, NewKey
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import ApiKey
from tenora_platform.db.session import scoped
from tenora_platform.keys import make_key


def list_keys(work: Transaction, tenant_id: uuid.UUID, page: PageRequest) -> Page[KeyView]:
    return paginate(work.session, scoped(ApiKey, tenant_id), ApiKey.created_at, ApiKey.id, page, _view)


def create_key(work: Transaction, tenant_id: uuid.UUID, new: NewKey) -> KeyWithSecret:
    """Raises InvalidRequest when it would be expired from the start."""
    if new.expires_at is not None and new.expires_at <= datetime.now(UTC):
        raise InvalidRequest("The key would have expired already.", param="expires_at")
    made = make_key()
    row = ApiKey(
        tenant_id=tenant_id,
        name=new.name,
        prefix=made.prefix,
        key_sha256=made.sha256,
        allowed_models=new.allowed_models,
        expires_at=new.expires_at,
    )
    work.session.add(row)
    work.session.flush()
    record(work, "api_key.create", row.id, tenant_id=tenant_id, name=row.name, prefix=row.prefix)
    work.publish(Change(ChangeKind.API_KEY, tenant_id, key_prefix=row.prefix))  # a gateway may remember its absence
    return KeyWithSecret(**_view(row).model_dump(), key=made.text)


def revoke_key(work: Transaction, tenant_id: uuid.UUID, key_id: uuid.UUID) -> None:
    """Twice is as good as once. Raises NotFound."""
    row = work.session.scalar(scoped(ApiKey, tenant_id).where(ApiKey.id == key_id).with_for_update())
    if row is None:
        raise NotFound("API key")
    if row.revoked_at is None:
        row.revoked_at = datetime.now(UTC)
        record(work, "api_key.revoke", row.id, tenant_id=tenant_id, name=row.name, prefix=row.prefix)
    work.publish(Change(ChangeKind.API_KEY, tenant_id, key_prefix=row.prefix))


def _view(row: ApiKey) -> KeyView:
    return KeyView(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        allowed_models=row.allowed_models,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        created_at=row.created_at,
    )
