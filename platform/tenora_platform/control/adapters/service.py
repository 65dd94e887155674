"""Adapters of a tenant: list, look, delete.

How a version comes to be is in `uploading.py`, how it gets ready in `tasks.py`, and what a name serves in `serving.py`.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Select

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters.schemas import AdapterDetail, AdapterView, UploadAccepted, VersionView
from tenora_platform.control.adapters.states import move
from tenora_platform.control.adapters.views import adapter_views, version_view
from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import NotFound
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, page_of_rows
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Adapter, AdapterVersion, VersionStatus
from tenora_platform.db.session import scoped

VERSIONS_SHOWN: Final = 100


def list_adapters(work: Transaction, tenant_id: uuid.UUID, page: PageRequest) -> Page[AdapterView]:
    rows = page_of_rows(work.session, live(tenant_id), Adapter.created_at, Adapter.id, page)
    return Page(items=adapter_views(work.session, tenant_id, rows.rows), next=rows.next)


def get_adapter(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID) -> AdapterDetail:
    """With its VERSIONS_SHOWN newest versions. Raises NotFound."""
    adapter = find_adapter(work, tenant_id, adapter_id)
    newest = _versions(adapter).order_by(AdapterVersion.number.desc()).limit(VERSIONS_SHOWN)
    versions = work.session.scalars(newest).all()
    # The adapter as it is after its versions were read: one that takes over meanwhile is shown as validating still,
    # and who waits for it looks again.
    work.session.refresh(adapter)
    (view,) = adapter_views(work.session, tenant_id, [adapter])
    return AdapterDetail(**dict(view), versions=[version_view(adapter, version) for version in versions])


def get_version(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, version_id: uuid.UUID) -> VersionView:
    """Raises NotFound."""
    adapter = find_adapter(work, tenant_id, adapter_id)
    version = work.session.scalar(_versions(adapter).where(AdapterVersion.id == version_id))
    if version is None:
        raise NotFound("version")
    return version_view(adapter, version)


def accepted_upload(
    work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, version_id: uuid.UUID
) -> UploadAccepted:
    """What an upload has become. Raises NotFound."""
    (adapter,) = adapter_views(work.session, tenant_id, [find_adapter(work, tenant_id, adapter_id)])
    return UploadAccepted(adapter=adapter, version=get_version(work, tenant_id, adapter_id, version_id))


def delete_adapter(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID) -> None:
    """New requests no longer find it, running ones end on the version they have; the name is free at once.

    Raises NotFound.
    """
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    adapter.deleted_at = datetime.now(UTC)
    adapter.active_version_id = adapter.previous_version_id = None
    adapter.canary_version_id = adapter.canary_percent = None
    # One that is being checked is locked by its check, which waits for the adapter and then deletes it itself.
    for version in work.session.scalars(_versions(adapter).with_for_update(key_share=True, skip_locked=True)):
        move(version, VersionStatus.DELETED)
    record(work, "adapter.delete", adapter.id, tenant_id=tenant_id, name=adapter.name)
    work.publish(Change(ChangeKind.ADAPTER, tenant_id))


def live(tenant_id: uuid.UUID) -> Select[Adapter]:
    return scoped(Adapter, tenant_id).where(Adapter.deleted_at.is_(None))


def _versions(adapter: Adapter) -> Select[AdapterVersion]:
    return scoped(AdapterVersion, adapter.tenant_id).where(
        AdapterVersion.adapter_id == adapter.id, AdapterVersion.status != VersionStatus.DELETED
    )


def find_adapter(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, *, lock: bool = False) -> Adapter:
    """Raises NotFound. With `lock`, whatever else changes this adapter waits for the end of the transaction."""
    query = live(tenant_id).where(Adapter.id == adapter_id)
    adapter = work.session.scalar(query.with_for_update() if lock else query)
    if adapter is None:
        raise NotFound("adapter")
    return adapter
