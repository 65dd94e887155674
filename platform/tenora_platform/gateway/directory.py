"""Who asks, and for which model: the catalogue, kept for a moment and dropped when it changes.

Rows are kept for at most `ttl_s`, counted from when they were read and not from when they were last used, and are
dropped at once when the control plane says that they changed (`tenora_platform.changes`). A lost message costs
`ttl_s` at most: that is the bound on a revoked key, a moved adapter and a new quota.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from tenora_adapters.names import ADAPTER_NAME
from tenora_platform.changes import Change, ChangeKind
from tenora_platform.gateway.cache import ReadThrough
from tenora_platform.gateway.canary import asker_of
from tenora_platform.gateway.catalog import (
    AdapterKey,
    Base,
    Catalog,
    KeyRecord,
    Principal,
    Serving,
    Version,
    VersionKey,
)
from tenora_platform.gateway.errors import ModelNotFound, Unauthenticated
from tenora_platform.keys import parse_key, proves

_ADAPTER: Final = re.compile(rf"(?P<name>{ADAPTER_NAME.pattern})(@(?P<number>[1-9][0-9]{{0,8}}))?", re.ASCII)


@dataclass(frozen=True)
class Model:
    """What a request's `model` means: a base, or a version of an adapter on it."""

    base: Base
    version: Version | None

    @property
    def name(self) -> str:
        """Without a version number: what keys are allowed, and what is listed."""
        return self.base.name if self.version is None else f"{self.base.name}:{self.version.adapter}"

    @property
    def created_at(self) -> datetime:
        return self.base.created_at if self.version is None else self.version.created_at


class Directory:
    """Every method that asks raises Unavailable when Postgres is away: nothing is served on a guess."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._catalog = catalog
        self._now = now
        self._keys: ReadThrough[str, KeyRecord] = ReadThrough(catalog.key, ttl_s=ttl_s, clock=clock)
        self._bases: ReadThrough[None, tuple[Base, ...]] = ReadThrough(self._read_bases, ttl_s=ttl_s, clock=clock)
        self._versions: ReadThrough[VersionKey, Version] = ReadThrough(catalog.version, ttl_s=ttl_s, clock=clock)
        self._serving: ReadThrough[AdapterKey, Serving] = ReadThrough(catalog.serving, ttl_s=ttl_s, clock=clock)
        self._listings: ReadThrough[UUID, tuple[Version, ...]] = ReadThrough(
            catalog.active_versions, ttl_s=ttl_s, clock=clock
        )

    async def authenticate(self, key: str) -> Principal:
        """Raises Unauthenticated, with one text for every reason."""
        prefix = parse_key(key)
        record = None if prefix is None else await self._keys.get(prefix)
        proven = proves(key, bytes(32) if record is None else record.sha256)  # unknown keys take as long as wrong ones
        expired = record is not None and record.expires_at is not None and record.expires_at <= self._now()
        if record is None or not proven or not record.usable or expired:
            raise Unauthenticated("Incorrect API key provided.")
        return record.principal

    async def resolve(self, principal: Principal, asked: str, user: str | None = None) -> Model:
        """`base`, `base:adapter` or `base:adapter@number`, found by look-up. Raises ModelNotFound.

        A base's name may itself hold ':', so every base that could be meant is tried, the longest name first. Where
        two versions share an adapter's requests, `user` or else the key says which of them answers.
        """
        asker = asker_of(user, principal.key_id)
        for base in sorted(await self.bases(), key=lambda base: len(base.name), reverse=True):
            if asked == base.name:
                model = Model(base, None)
            elif asked.startswith(base.name + ":"):
                version = await self._version(principal.tenant_id, base, asked[len(base.name) + 1 :], asker)
                if version is None:
                    continue
                model = Model(base, version)
            else:
                continue
            if principal.may_use(model.name):
                return model
        raise ModelNotFound(asked)

    async def models(self, principal: Principal) -> list[Model]:
        """All that this key may ask for, bases first."""
        bases = {base.id: base for base in await self.bases()}
        versions = await self._listings.get(principal.tenant_id) or ()
        models = [Model(base, None) for base in bases.values()]
        models += [Model(bases[version.base_id], version) for version in versions if version.base_id in bases]
        return [model for model in models if principal.may_use(model.name)]

    async def bases(self) -> tuple[Base, ...]:
        return await self._bases.get(None) or ()

    def forget(self, change: Change | None) -> None:
        """Drop what `change` concerns; everything when it is None (changes may have been missed)."""
        if change is None or change.tenant_id is None or change.kind is ChangeKind.BASE_MODEL:
            self._keys.clear()
            self._bases.clear()
            self._versions.clear()
            self._serving.clear()
            self._listings.clear()
            return
        tenant_id, prefix = change.tenant_id, change.key_prefix
        self._keys.drop(
            lambda known, record: known == prefix or (record is not None and record.principal.tenant_id == tenant_id)
        )
        self._versions.drop(lambda key, _: key.tenant_id == tenant_id)
        self._serving.drop(lambda key, _: key.tenant_id == tenant_id)
        self._listings.drop(lambda listed, _: listed == tenant_id)

    async def _version(self, tenant_id: UUID, base: Base, text: str, asker: str) -> Version | None:
        match = _ADAPTER.fullmatch(text)
        if match is None:
            return None
        if match["number"] is not None:
            return await self._versions.get(VersionKey(tenant_id, base.id, match["name"], int(match["number"])))
        serving = await self._serving.get(AdapterKey(tenant_id, base.id, match["name"]))
        return None if serving is None else serving.version_for(asker)

    async def _read_bases(self, _key: None) -> tuple[Base, ...]:
        return await self._catalog.bases()
