"""Whom to ask: an API, its tenants with a key each, and the models that each may name.

The file format is that of `demo.json`, which `tenora demo` writes; `weight` may be added to a tenant.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec


class Api(StrEnum):
    """Which endpoint is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class TargetTenant(msgspec.Struct, frozen=True):
    name: str
    models: list[str]
    api_key: str = ""
    weight: float = 1.0

    def __repr__(self) -> str:
        return f"TargetTenant({self.name!r}, {self.models!r})"  # the key is for the wire alone


class Targets(msgspec.Struct, frozen=True):
    api: str  # up to and with /v1
    tenants: list[TargetTenant]
    base_model: str | None = None

    def asking(self, models: list[str]) -> Targets:
        """The same tenants, each asking for these models instead."""
        tenants = [msgspec.structs.replace(tenant, models=models) for tenant in self.tenants]
        return msgspec.structs.replace(self, tenants=tenants)


def read_targets(file: Path) -> Targets:
    """Raises OSError, and ValueError when the file is no such list or a tenant has nothing to ask."""
    try:
        targets = msgspec.json.decode(file.read_bytes(), type=Targets)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from error
    if not targets.tenants or not all(tenant.models for tenant in targets.tenants):
        raise ValueError(f"{file}: every tenant needs a model")
    return targets
