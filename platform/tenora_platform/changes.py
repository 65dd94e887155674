"""News of changed configuration, from the control plane to every gateway, over Redis publish/subscribe.

A message may be lost; a gateway's cached rows expire by themselves (`Settings.key_cache_s`) and this only makes
it faster. Published after the transaction that it speaks of has committed, never before.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

CHANNEL: Final = "tenora:changes"


class ChangeKind(StrEnum):
    TENANT = "tenant"
    API_KEY = "api_key"
    ADAPTER = "adapter"
    QUOTA = "quota"
    BASE_MODEL = "base_model"


class Change(msgspec.Struct, frozen=True):
    kind: ChangeKind
    tenant_id: UUID | None  # None: it concerns everybody
    key_prefix: str | None = None  # of the API key, when the change is about one


def encode_change(change: Change) -> bytes:
    return msgspec.json.encode(change)


def decode_change(data: bytes) -> Change:
    """Raises msgspec.DecodeError on anything that is not a change."""
    return msgspec.json.decode(data, type=Change)
