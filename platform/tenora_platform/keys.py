"""API keys: `tnr_<prefix>_<secret>`.

The prefix (12 characters of `[a-z0-9]`) is public and finds the row; the SHA-256 of the whole key proves it. The
secret holds 256 random bits, so a plain hash is enough: there is nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass
from typing import Final

_PREFIX_LENGTH: Final = 12
_ALPHABET: Final = string.ascii_lowercase + string.digits
KEY_START: Final = rf"tnr_[a-z0-9]{{{_PREFIX_LENGTH}}}_"  # a regular expression: what every key begins with
_KEY: Final = re.compile(rf"{KEY_START}[A-Za-z0-9_-]{{43,128}}", re.ASCII)


@dataclass(frozen=True)
class NewKey:
    """A key just made. `text` is shown once and never stored; the other two are the row."""

    text: str
    prefix: str
    sha256: bytes

    def __repr__(self) -> str:
        return f"NewKey(prefix={self.prefix!r})"  # the secret stays out of logs and tracebacks


def make_key() -> NewKey:
    """A new random key."""
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(_PREFIX_LENGTH))
    text = f"tnr_{prefix}_{secrets.token_urlsafe(32)}"
    return NewKey(text=text, prefix=prefix, sha256=key_sha256(text))


def parse_key(text: str) -> str | None:
    """The prefix of a well-formed key; None for anything else."""
    return text.split("_")[1] if _KEY.fullmatch(text) else None


def key_sha256(text: str) -> bytes:
    """What is stored of a key: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def proves(text: str, stored: bytes) -> bool:
    """Whether `text` is the key whose hash is `stored`, in time that does not depend on where they differ."""
    return hmac.compare_digest(key_sha256(text), stored)
