"""The prefix-cache salt: what keeps one tenant's cached prefixes from another's, made here and nowhere else."""

from __future__ import annotations

import hmac
from typing import Final
from uuid import UUID

_DOMAIN: Final = b"tenora.cache-salt.v1\0"


def cache_salt(secret: bytes, tenant_id: UUID) -> bytes:
    """HMAC-SHA256(platform secret, domain || tenant id), 32 bytes. A client can neither set nor learn it."""
    return hmac.digest(secret, _DOMAIN + tenant_id.bytes, "sha256")
