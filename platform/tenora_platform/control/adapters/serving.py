"""Which version an adapter's name serves: promote, roll back, canary, retire, delete.

Each takes the adapter's row first, so that changes of one adapter take turns; writes one audit row; and tells the
gateways once it has committed. Requests that a gateway has resolved end on the version they have.
"""

from __future__ import annotations

import uuid

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters.service import find_adapter
from tenora_platform.control.adapters.states import move, serves
from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import Conflict, NotFound
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Adapter, AdapterVersion, VersionStatus
from tenora_platform.db.session import scoped


def promote(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, number: int) -> None:
    """Every request to the name goes to this version. Ends a canary. Raises NotFound, Conflict."""
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    version = _ready(work, adapter, number)
    point_to(adapter, version)
    _changed(work, adapter, "adapter.promote", number=number)


def roll_back(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID) -> None:
    """Undo the last step: end the canary if there is one, else serve the version before. Raises NotFound, Conflict.

    The version that served until now is then the one before: a second roll back undoes the first.
    """
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    if adapter.canary_version_id is not None:
        _end_canary(adapter)
    else:
        before = _previous(work, adapter)
        if before is None:
            raise Conflict("There is no version to go back to.", code="nothing_before")
        point_to(adapter, before)
    serving = _by_id(work, adapter, adapter.active_version_id)
    _changed(work, adapter, "adapter.roll_back", number=None if serving is None else serving.number)


def start_canary(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, number: int, percent: int) -> None:
    """Give this version `percent` of the name's requests, or change its share. Raises NotFound, Conflict."""
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    version = _ready(work, adapter, number)
    if adapter.active_version_id is None:
        raise Conflict("No version serves yet that could share requests: promote one.", code="no_active_version")
    if version.id == adapter.active_version_id:
        raise Conflict(f"Version {number} serves already: a canary is another version.", code="already_active")
    adapter.canary_version_id, adapter.canary_percent = version.id, percent
    _changed(work, adapter, "adapter.canary", number=number, percent=percent)


def end_canary(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID) -> None:
    """All requests go to the active version again. Without a canary nothing changes. Raises NotFound."""
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    if adapter.canary_version_id is not None:
        _end_canary(adapter)
        _changed(work, adapter, "adapter.end_canary")


def retire(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, version_id: uuid.UUID) -> None:
    """No new requests, by number either; its files stay. Raises NotFound, Conflict."""
    _end(work, tenant_id, adapter_id, version_id, VersionStatus.RETIRED)


def delete_version(work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, version_id: uuid.UUID) -> None:
    """No new requests, and its files go once nobody's version has them. Raises NotFound, Conflict."""
    _end(work, tenant_id, adapter_id, version_id, VersionStatus.DELETED)


def point_to(adapter: Adapter, version: AdapterVersion) -> None:
    """Serve `version` alone, and remember what was served. The caller holds the adapter's row."""
    if adapter.active_version_id not in (None, version.id):
        adapter.previous_version_id = adapter.active_version_id
    adapter.active_version_id = version.id
    _end_canary(adapter)


def _end(
    work: Transaction, tenant_id: uuid.UUID, adapter_id: uuid.UUID, version_id: uuid.UUID, to: VersionStatus
) -> None:
    adapter = find_adapter(work, tenant_id, adapter_id, lock=True)
    version = _by_id(work, adapter, version_id)
    if version is None:
        raise NotFound("version")
    if version.status == VersionStatus.VALIDATING:
        raise Conflict(f"Version {version.number} is being validated: wait for its end.", code="wrong_state")
    if serves(adapter, version):
        message = f"Version {version.number} serves requests: promote another first, or delete the adapter."
        raise Conflict(message, code="serves_requests")
    move(version, to)
    if adapter.previous_version_id == version.id:
        adapter.previous_version_id = None
    action = "adapter.retire" if to is VersionStatus.RETIRED else "adapter.delete_version"
    _changed(work, adapter, action, number=version.number)


def _end_canary(adapter: Adapter) -> None:
    adapter.canary_version_id = adapter.canary_percent = None


def _previous(work: Transaction, adapter: Adapter) -> AdapterVersion | None:
    version = _by_id(work, adapter, adapter.previous_version_id)
    return version if version is not None and version.status == VersionStatus.READY else None


def _by_id(work: Transaction, adapter: Adapter, version_id: uuid.UUID | None) -> AdapterVersion | None:
    query = scoped(AdapterVersion, adapter.tenant_id).where(
        AdapterVersion.adapter_id == adapter.id,
        AdapterVersion.id == version_id,
        AdapterVersion.status != VersionStatus.DELETED,
    )
    return work.session.scalar(query)


def _ready(work: Transaction, adapter: Adapter, number: int) -> AdapterVersion:
    """Raises NotFound, Conflict."""
    query = scoped(AdapterVersion, adapter.tenant_id).where(
        AdapterVersion.adapter_id == adapter.id,
        AdapterVersion.number == number,
        AdapterVersion.status != VersionStatus.DELETED,
    )
    version = work.session.scalar(query)
    if version is None:
        raise NotFound("version")
    if version.status != VersionStatus.READY:
        raise Conflict(f"Version {number} is {version.status}: only a ready one can serve.", code="wrong_state")
    return version


def _changed(work: Transaction, adapter: Adapter, action: str, **detail: object) -> None:
    record(work, action, adapter.id, tenant_id=adapter.tenant_id, name=adapter.name, **detail)
    work.publish(Change(ChangeKind.ADAPTER, adapter.tenant_id))
