"""Full blocks that can be found again by everything that went into them.

A block's key is a SHA-256 chain over typed, length-framed fields, so that two different inputs can never be read as
the same bytes:

    root      = H("tenora.kv.v1" | salt | base fingerprint | kv dtype)
    parent    = the key of the block before, or root; of a block in which adapters begin to apply
                H("tenora.kv.adapters" | that | for each of these: digest, scale, first position)
    key of b  = H(parent | the token ids of b)

So blocks that lie wholly before an activated adapter's invocation are the base's. The full 256 bits are compared. The
salt is the tenant's, made by the server: tenants share nothing. Adapters stand by their digest, never by a name or a
slot number: a new version or a reused slot finds nothing of the old one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenora_engine.kv.accounts import KvAccount, KvAccounts
from tenora_engine.kv.block_pool import BlockPool
from tenora_engine.wire import AdapterUse


@dataclass(frozen=True, slots=True)
class CacheScope:
    """All that decides a KV value of the base, besides the tokens."""

    salt: bytes
    base_fingerprint: str
    kv_dtype: str

    def root(self) -> bytes:
        return _framed_digest([b"tenora.kv.v1", self.salt, self.base_fingerprint.encode(), self.kv_dtype.encode()])


def parent_with_adapters(parent: bytes, activations: Iterable[tuple[AdapterUse, int]]) -> bytes:
    """What takes the place of `parent` for a block in which adapters begin to apply, each from a position on."""
    fields = [b"tenora.kv.adapters", parent]
    for use, start in activations:
        fields += [use.digest.encode(), struct.pack("<d", use.scale), struct.pack("<Q", start)]
    return _framed_digest(fields)


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full block: `parent` is the key of the block before it, or the scope's root; both have 32 bytes."""
    return hashlib.sha256(parent + struct.pack(f"<{len(token_ids)}I", *token_ids)).digest()


def _framed_digest(fields: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for field in fields:
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)
    return digest.digest()


@dataclass(slots=True)
class CacheCounters:
    """What the cache did since the start, in tokens. Holds no content."""

    queried: int = 0
    hit: int = 0
    evicted_blocks: int = 0


class PrefixCache:
    """The pool, the keys of its full blocks, and whose they are. The only door to blocks for the scheduler."""

    def __init__(self, num_blocks: int, block_size: int, *, enabled: bool = True) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enabled = enabled
        self.counters = CacheCounters()
        self.accounts = KvAccounts()
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._owner_of: dict[int, KvAccount] = {}  # who allocated it last

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of `keys`, not held yet: `hold` them before any `allocate`."""
        blocks: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count(self, tenant: str, queried: int, hit: int) -> None:
        """A tenant looked for so many tokens, and that many of them were found."""
        account = self.accounts.of(tenant)
        account.queried_tokens += queried
        account.hit_tokens += hit
        self.counters.queried += queried
        self.counters.hit += hit

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` lie on the free queue, so that holding them makes the pool smaller."""
        return sum(self.pool.is_free(block) for block in blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        for block in self.pool.share(blocks):
            owner = self._owner_of[block]
            owner.held_blocks += 1
            owner.cached_blocks -= block in self._key_of

    def allocate(self, count: int, tenant: str) -> list[int]:
        """`count` blocks to write to; what they held is forgotten. The caller checks `pool.num_free` first."""
        blocks = self.pool.take(count)
        account = self.accounts.of(tenant)
        account.held_blocks += count
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]
                self._owner_of[block].evicted_blocks += 1
                self._owner_of[block].cached_blocks -= 1
                self.counters.evicted_blocks += 1
            self._owner_of[block] = account
        return blocks

    def publish(self, block: int, key: bytes) -> None:
        """Let a computed full block be found. The first block with a key stays; an equal one remains anonymous."""
        assert self.pool.holders(block) > 0
        if self.enabled and key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Drop the caller's hold. The last blocks go first on the free queue, so that a prefix outlives its tail."""
        for block in self.pool.release(reversed(blocks)):
            owner = self._owner_of[block]
            owner.held_blocks -= 1
            owner.cached_blocks += block in self._key_of
