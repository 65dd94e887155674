"""Passwords are kept as argon2id hashes and nowhere else."""

from __future__ import annotations

import threading
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_hasher: Final = PasswordHasher()  # argon2id with the parameters of RFC 9106's second choice: 64 MiB, 3 passes
# Each check takes 64 MiB and a core for tens of milliseconds: strangers must not run many at once.
_room: Final = threading.BoundedSemaphore(2)


def hash_password(password: str) -> str:
    with _room:
        return _hasher.hash(password)


def verify_password(password: str, stored: str | None) -> bool:
    """Whether `password` has the hash `stored`; without one, False after the same work, so that the time an answer
    takes does not tell which users exist."""
    with _room:
        try:
            _hasher.verify(stored or _nobody(), password)
        except (VerificationError, InvalidHashError):
            return False
    return stored is not None


@cache
def _nobody() -> str:
    return _hasher.hash("nobody has this password")
