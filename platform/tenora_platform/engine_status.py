"""What the engines are doing, from every gateway to the control plane: one key per engine in Redis.

A gateway writes what an engine last said of itself; the key expires by itself when no gateway hears of that engine.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tenora_engine.wire import Status

STATUS_TTL_S: Final = 5
KEY_PREFIX: Final = "tenora:engines:"


def status_key(engine_id: str) -> str:
    return KEY_PREFIX + engine_id


def encode_status(status: Status) -> bytes:
    return msgspec.json.encode(status)


def decode_status(data: bytes | str) -> Status:
    """Raises msgspec.DecodeError on anything that is not a status."""
    return msgspec.json.decode(data, type=Status)
