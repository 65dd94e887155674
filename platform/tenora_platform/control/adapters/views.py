"""Adapters as callers see them, put together from a page of rows with a fixed number of queries."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from tenora_platform.control.adapters.schemas import AdapterView, Report, VersionSummary, VersionView
from tenora_platform.control.adapters.states import share_percent
from tenora_platform.db.models import Adapter, AdapterVersion, BaseModelRow, VersionStatus
from tenora_platform.db.session import scoped


def adapter_views(session: Session, tenant_id: uuid.UUID, adapters: Sequence[Adapter]) -> list[AdapterView]:
    ids = [adapter.id for adapter in adapters]
    names = {row.id: row.name for row in session.scalars(select(BaseModelRow))}
    of_these = scoped(AdapterVersion, tenant_id).where(
        AdapterVersion.adapter_id.in_(ids), AdapterVersion.status != VersionStatus.DELETED
    )
    counting = of_these.with_only_columns(
        AdapterVersion.adapter_id, func.count(), func.max(AdapterVersion.number)
    ).group_by(AdapterVersion.adapter_id)
    counts: dict[uuid.UUID, int] = {}
    newest: list[tuple[uuid.UUID, int]] = []
    for adapter_id, count, number in session.execute(counting):
        counts[adapter_id] = count
        newest.append((adapter_id, number))
    newest_of_these = of_these.where(tuple_(AdapterVersion.adapter_id, AdapterVersion.number).in_(newest))
    latest = {version.adapter_id: version for version in session.scalars(newest_of_these)}
    pointed_to = {version_id for adapter in adapters for version_id in _pointers(adapter)}
    by_id = {version.id: version for version in session.scalars(of_these.where(AdapterVersion.id.in_(pointed_to)))}
    return [
        AdapterView(
            id=adapter.id,
            name=adapter.name,
            base_model=names[adapter.base_model_id],
            model=f"{names[adapter.base_model_id]}:{adapter.name}",
            active_version=_summary(adapter, _of(by_id, adapter.active_version_id)),
            canary_version=_summary(adapter, _of(by_id, adapter.canary_version_id)),
            previous_version=_summary(adapter, _of(by_id, adapter.previous_version_id)),
            latest_version=_summary(adapter, latest.get(adapter.id)),
            versions_count=counts.get(adapter.id, 0),
            created_at=adapter.created_at,
        )
        for adapter in adapters
    ]


def version_view(adapter: Adapter, version: AdapterVersion) -> VersionView:
    return VersionView(
        id=version.id,
        number=version.number,
        digest=version.digest,
        status=VersionStatus(version.status),
        share_percent=share_percent(adapter, version),
        size_bytes=version.size_bytes,
        created_at=version.created_at,
        report=Report.model_validate(version.report),
    )


def _pointers(adapter: Adapter) -> Iterator[uuid.UUID]:
    for version_id in (adapter.active_version_id, adapter.canary_version_id, adapter.previous_version_id):
        if version_id is not None:
            yield version_id


def _of(versions: dict[uuid.UUID, AdapterVersion], version_id: uuid.UUID | None) -> AdapterVersion | None:
    return None if version_id is None else versions.get(version_id)


def _summary(adapter: Adapter, version: AdapterVersion | None) -> VersionSummary | None:
    if version is None:
        return None
    return VersionSummary(**version_view(adapter, version).model_dump(exclude={"report"}))
