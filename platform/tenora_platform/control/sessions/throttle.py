"""How often somebody may try to sign in as one user. Counted in Redis, so that all processes count together."""

from __future__ import annotations

import hashlib
from typing import Final

import redis

from tenora_platform.control.errors import TooManyRequests, Unavailable

MAX_ATTEMPTS: Final = 10
WINDOW_S: Final = 300


def count_attempt(client: redis.Redis, username: str) -> None:
    """Count one attempt. Raises TooManyRequests past the limit.

    With Redis away nobody can sign in (Unavailable): who is signed in stays so, and guessing stays bounded.
    """
    key = _key(username)
    try:
        with client.pipeline(transaction=True) as pipe:
            pipe.set(key, 0, ex=WINDOW_S, nx=True)
            pipe.incr(key)
            pipe.ttl(key)
            _, attempts, ttl = pipe.execute()
    except redis.RedisError as error:
        raise Unavailable("Signing in is not possible at the moment.") from error
    if attempts > MAX_ATTEMPTS:
        raise TooManyRequests("Too many attempts to sign in as this user.", retry_after=max(1, int(ttl)))


def forget_attempts(client: redis.Redis, username: str) -> None:
    """After a success. Raises Unavailable."""
    try:
        client.delete(_key(username))
    except redis.RedisError as error:
        raise Unavailable("Signing in is not possible at the moment.") from error


def _key(username: str) -> str:
    # Hashed: people type passwords into the wrong field.
    return f"tenora:signin:{hashlib.sha256(username.encode()).hexdigest()}"
