"""Who asks, and for which model: the catalogue, kept for a moment and dropped when it changes.

Rows are kept for at most `ttl_s`, counted from when they were read and not from when they were last used, and are
dropped at once when the control plane says that they changed (`tenora_platform.changes`). A lost message costs
`ttl_s` at most: that is the bound on a revoked key, a moved adapter and a new quota.
"""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
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
from tenora_platform.gateway.errors import InvalidRequest, ModelNotFound, Unauthenticated
from tenora_platform.gateway.requests import MAX_ADAPTERS, AdapterChoice
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


@dataclass(frozen=True)
class Scaled:
    """A version, and how much of it is added."""

    version: Version
    scale: float = 1.0


@dataclass(frozen=True)
class Composed:
    """What answers a request: a base with any number of adapters added up, in the order that they were asked for."""

    base: Base
    adapters: tuple[Scaled, ...]

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(used.version.digest for used in self.adapters)

    @property
    def adapter(self) -> str | None:
        """What it is called in usage and bills: None, the adapter's name, or `a@3*0.7+b@1`.

        Names hold neither of the signs, so that this says which versions it was, and how much of each.
        """
        match self.adapters:
            case ():
                return None
            case (Scaled(version, 1.0),):
                return version.adapter
        return "+".join(
            f"{used.version.adapter}@{used.version.number}" + ("" if used.scale == 1 else f"*{used.scale!r}")
            for used in self.adapters
        )

    @property
    def digest(self) -> str | None:
        """The version's; of several SHA-256( "tenora.composition.v1" NUL || each one's digest and scale as f8 )"""
        if len(self.adapters) <= 1:
            return self.adapters[0].version.digest if self.adapters else None
        framed = b"".join(bytes.fromhex(used.version.digest) + struct.pack("<d", used.scale) for used in self.adapters)
        return hashlib.sha256(b"tenora.composition.v1\0" + framed).hexdigest()


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
        async for model in self._meant(principal, asked, asker_of(user, principal.key_id)):
            if principal.may_use(model.name):
                return model
        raise ModelNotFound(asked)

    async def compose(
        self, principal: Principal, asked: str, adapters: Sequence[AdapterChoice], user: str | None = None
    ) -> Composed:
        """What `asked` means, with `adapters` of its base added. Raises ModelNotFound, InvalidRequest.

        A key that may use an adapter may scale it: then the base's name alone only says whose adapters they are.
        """
        if not adapters:
            model = await self.resolve(principal, asked, user)
            return Composed(model.base, () if model.version is None else (Scaled(model.version),))
        asker = asker_of(user, principal.key_id)
        async for model in self._meant(principal, asked, asker):
            if model.version is None or principal.may_use(model.name):
                break
        else:
            raise ModelNotFound(asked)
        found = [] if model.version is None else [Scaled(model.version)]
        for index, choice in enumerate(adapters):
            param = f"adapters[{index}].name"
            version = await self._version(principal.tenant_id, model.base, choice.name, asker)
            if version is None or not principal.may_use(Model(model.base, version).name):
                raise ModelNotFound(f"{model.base.name}:{choice.name}", param=param)
            if any(version.digest == other.version.digest for other in found):
                raise InvalidRequest(f"The adapter {choice.name!r} is named twice.", param=param, code="invalid_value")
            found.append(Scaled(version, choice.scale))
        if len(found) > MAX_ADAPTERS:
            raise InvalidRequest(
                f"A request uses {MAX_ADAPTERS} adapters at most, that of 'model' included.", param="adapters"
            )
        return Composed(model.base, tuple(found))

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

    async def _meant(self, principal: Principal, asked: str, asker: str) -> AsyncIterator[Model]:
        """All that there is under this name, the longest base's first; whether the key may use it is not asked."""
        for base in sorted(await self.bases(), key=lambda base: len(base.name), reverse=True):
            if asked == base.name:
                yield Model(base, None)
            elif asked.startswith(base.name + ":"):
                version = await self._version(principal.tenant_id, base, asked[len(base.name) + 1 :], asker)
                if version is not None:
                    yield Model(base, version)

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
