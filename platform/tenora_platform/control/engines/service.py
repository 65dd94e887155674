"""The engines that are up now: every gateway writes what it hears from its engines to Redis, for a few seconds."""

from __future__ import annotations

import logging

import msgspec
import redis

from tenora_platform.control.engines.schemas import EngineList, EngineView
from tenora_platform.engine_status import KEY_PREFIX, decode_status

_log = logging.getLogger(__name__)


def list_engines(client: redis.Redis) -> EngineList:
    """Raises redis.RedisError."""
    keys = sorted(client.scan_iter(match=f"{KEY_PREFIX}*", count=500))
    values = client.mget(keys) if keys else []
    engines = [_view(value) for value in values if value is not None]  # None: it expired meanwhile
    return EngineList(items=[engine for engine in engines if engine is not None])


def _view(value: bytes | str) -> EngineView | None:
    try:
        status = decode_status(value)
    except msgspec.DecodeError:
        _log.warning("an engine's status could not be read: it may speak a newer protocol")
        return None
    return EngineView(
        engine_id=status.engine_id,
        base_fingerprint=status.base_fingerprint,
        build=status.build,
        max_model_len=status.max_model_len,
        block_size=status.block_size,
        kv_blocks_total=status.kv_blocks_total,
        kv_blocks_free=status.kv_blocks_free,
        running=status.running,
        waiting=status.waiting,
        load_tokens=status.load_tokens,
        adapters=[adapter.digest for adapter in status.adapters],
        draining=status.draining,
    )
