"""The salt that keeps tenants' cached prefixes apart."""

from __future__ import annotations

from uuid import UUID

from tenora_platform.gateway.salt import cache_salt

ONE, OTHER = UUID(int=1), UUID(int=2)


def test_the_salt_is_the_tenants_and_the_platforms() -> None:
    """CACHE-05, the gateway's part."""
    assert cache_salt(b"s", ONE) == cache_salt(b"s", ONE)
    assert len({cache_salt(b"s", ONE), cache_salt(b"s", OTHER), cache_salt(b"t", ONE)}) == 3
    assert len(cache_salt(b"s", ONE)) == 32


def test_the_salt_never_changes_by_accident() -> None:
    """It is part of every prefix-cache key: another derivation would empty all caches."""
    assert cache_salt(b"secret", ONE).hex() == "1e113bdf43f755a9c9bf9bbaeee754900e6a87f14aa660c14b36ab9492beee4a"
