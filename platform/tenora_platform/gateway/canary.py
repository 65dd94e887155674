"""Which of two versions a request gets: decided by who asks, the same way in every gateway and every time."""

from __future__ import annotations

import hashlib
from uuid import UUID

_DOMAIN = b"tenora.canary.v1\0"


def bucket(adapter_id: UUID, asker: str) -> int:
    """0 to 99: the first 8 bytes, big-endian, of SHA-256(domain || adapter id's 16 bytes || asker), modulo 100.

    Whoever is in the canary stays there while its share grows, and is in another adapter's by chance alone.
    """
    hashed = hashlib.sha256(_DOMAIN + adapter_id.bytes + asker.encode())
    return int.from_bytes(hashed.digest()[:8], "big") % 100


def asker_of(user: str | None, key_id: UUID) -> str:
    """The tenant's own user, where the request names one, or else the key."""
    return f"user:{user}" if user else f"key:{key_id}"
