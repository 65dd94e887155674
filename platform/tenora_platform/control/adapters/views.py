"""Adapters as callers see them, put together from a page of rows with a fixed number of queries."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tenora_platform.control.adapters.schemas import AdapterView, VersionSummary, VersionView
from tenora_platform.db.models import Adapter, AdapterVersion, BaseModelRow, VersionStatus
from tenora_platform.db.session import scoped


def adapter_views(session: Session, tenant_id: uuid.UUID, adapters: Sequence[Adapter]) -> list[AdapterView]:
    ids = [adapter.id for adapter in adapters]
    names = {row.id: row.name for row in session.scalars(select(BaseModelRow))}
    newest = (
        scoped(AdapterVersion, tenant_id)
        .where(AdapterVersion.adapter_id.in_(ids))
        .distinct(AdapterVersion.adapter_id)
        .order_by(AdapterVersion.adapter_id, AdapterVersion.number.desc())
    )
    latest = {version.adapter_id: version for version in session.scalars(newest)}
    active_ids = [adapter.active_version_id for adapter in adapters if adapter.active_version_id is not None]
    serving = scoped(AdapterVersion, tenant_id).where(AdapterVersion.id.in_(active_ids))
    active = {version.adapter_id: version for version in session.scalars(serving)}
    counting = (
        scoped(AdapterVersion, tenant_id)
        .where(AdapterVersion.adapter_id.in_(ids))
        .with_only_columns(AdapterVersion.adapter_id, func.count())
        .group_by(AdapterVersion.adapter_id)
    )
    counts: dict[uuid.UUID, int] = dict(session.execute(counting).tuples().all())
    return [
        AdapterView(
            id=adapter.id,
            name=adapter.name,
            base_model=names[adapter.base_model_id],
            model=f"{names[adapter.base_model_id]}:{adapter.name}",
            active_version=_summary(active.get(adapter.id)),
            latest_version=_summary(latest.get(adapter.id)),
            versions_count=counts.get(adapter.id, 0),
            created_at=adapter.created_at,
        )
        for adapter in adapters
    ]


def version_view(version: AdapterVersion) -> VersionView:
    return VersionView(
        id=version.id,
        number=version.number,
        digest=version.digest,
        status=VersionStatus(version.status),
        size_bytes=version.size_bytes,
        created_at=version.created_at,
        report=version.report,
    )


def _summary(version: AdapterVersion | None) -> VersionSummary | None:
    return None if version is None else VersionSummary(**version_view(version).model_dump(exclude={"report"}))
