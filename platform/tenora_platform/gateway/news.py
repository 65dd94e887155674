"""Listens for changed configuration and tells the directory what to forget."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
import redis.asyncio
import redis.exceptions

from tenora_platform.changes import CHANNEL, decode_change
from tenora_platform.gateway.directory import Directory

_RETRY_S: Final = 0.5
_log = logging.getLogger(__name__)


async def follow_changes(cache: redis.asyncio.Redis, directory: Directory) -> None:
    """For ever, through lost connections. Whatever was missed while not subscribed is made up by forgetting all."""
    while True:
        try:
            async with cache.pubsub(ignore_subscribe_messages=False) as feed:
                await feed.subscribe(CHANNEL)
                async for message in feed.listen():
                    if message["type"] == "subscribe":
                        directory.forget(None)
                    elif message["type"] == "message":
                        _apply(message["data"], directory)
        except (redis.exceptions.RedisError, OSError) as error:
            _log.warning("the feed of changes is away: %s", error)
        directory.forget(None)
        await asyncio.sleep(_RETRY_S)


def _apply(data: bytes, directory: Directory) -> None:
    try:
        directory.forget(decode_change(data))
    except msgspec.DecodeError as error:
        _log.error("not a change: %s", error)
        directory.forget(None)
