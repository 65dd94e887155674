"""The life of a version, in one place.

    uploaded -> validating -> ready -> retired -> deleted
                           -> rejected         -> deleted

An upload that is not complete has no version yet. `active` is no state of its own: it is a ready version that its
adapter's name points to, alone or as a canary. What serves cannot be retired or deleted; it has to stop serving first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from tenora_platform.control.errors import Conflict
from tenora_platform.db.models import Adapter, AdapterVersion, VersionStatus

MOVES: Final[Mapping[VersionStatus, frozenset[VersionStatus]]] = {
    VersionStatus.VALIDATING: frozenset({VersionStatus.READY, VersionStatus.REJECTED, VersionStatus.DELETED}),
    VersionStatus.READY: frozenset({VersionStatus.RETIRED, VersionStatus.DELETED}),
    VersionStatus.RETIRED: frozenset({VersionStatus.DELETED}),
    VersionStatus.REJECTED: frozenset({VersionStatus.DELETED}),
    VersionStatus.DELETED: frozenset(),
}
# Versions whose files have to be there, and that count against what a tenant may store.
LIVE: Final = (VersionStatus.VALIDATING, VersionStatus.READY, VersionStatus.RETIRED)
_ENDS: Final = (VersionStatus.REJECTED, VersionStatus.DELETED)


def move(version: AdapterVersion, to: VersionStatus) -> None:
    """Raises Conflict when a version in this state cannot become that."""
    if to not in MOVES[VersionStatus(version.status)]:
        raise Conflict(f"Version {version.number} is {version.status}: it cannot be {to}.", code="wrong_state")
    version.status = to
    if to in _ENDS:
        version.ended_at = datetime.now(UTC)


def serves(adapter: Adapter, version: AdapterVersion) -> bool:
    return version.id in (adapter.active_version_id, adapter.canary_version_id)


def share_percent(adapter: Adapter, version: AdapterVersion) -> int:
    """Of the requests to the adapter's bare name, how many in a hundred this version answers."""
    canary = adapter.canary_percent or 0
    if version.id == adapter.canary_version_id:
        return canary
    return 100 - canary if version.id == adapter.active_version_id else 0
