"""Block pool and prefix cache against a naive model, and the keys' isolation. No torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import ClassVar

import pytest
from interleavings import counts, interleave, machine

from tenora_engine.kv.accounts import KvAccounts
from tenora_engine.kv.block_pool import NULL_BLOCK
from tenora_engine.kv.prefix_cache import CacheScope, PrefixCache, block_key, parent_with_adapters
from tenora_engine.wire import AdapterUse

BLOCK_SIZE = 2
NUM_BLOCKS = 8


@dataclass(eq=False)
class Holder:
    """A sequence as the naive model sees it: its scope, its tokens, the blocks that it holds."""

    scope: str
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)


def keys_of(scope: str, tokens: list[int]) -> list[bytes]:
    keys: list[bytes] = []
    parent = scope.encode()
    for begin in range(0, len(tokens) - len(tokens) % BLOCK_SIZE, BLOCK_SIZE):
        parent = block_key(parent, tokens[begin : begin + BLOCK_SIZE])
        keys.append(parent)
    return keys


class CacheInterleaving:
    """Sequences that start, grow, fork and end, while steps are launched and retired.

    The naive model remembers, for every block, what its last owner wrote, and which launched step may touch it.
    """

    RULES: ClassVar = {"start": 4, "append": 8, "fork": 2, "end_one": 3, "launch": 3, "retire": 3}
    SCOPES = ("tenant-a", "tenant-b", "tenant-a/adapter-v1", "tenant-a/adapter-v2")

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
        self.holders: list[Holder] = []
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}  # block -> scope and all tokens up to its end
        self.launched = self.retired = 0
        self.touched: dict[int, int] = {}  # block -> the last launched step that may touch it

    def start(self) -> None:
        tokens = self.dice.choices((0, 1), k=self.dice.randint(1, 9))
        holder = Holder(self.dice.choice(self.SCOPES), tokens)
        keys = keys_of(holder.scope, tokens)[: (len(tokens) - 1) // BLOCK_SIZE]
        found = self.cache.match(keys)
        for index, block in enumerate(found):
            end = (index + 1) * BLOCK_SIZE
            assert self.content[block] == (holder.scope, tuple(tokens[:end])), "a hit on other content"
        num_new = self.cache.blocks_for(len(tokens)) - len(found)
        if self.cache.pool.num_free - self.cache.num_free_among(found) >= num_new:
            self.cache.hold(found)
            holder.blocks = found + self._allocate(holder, num_new)
            self.holders.append(holder)
            self._write(holder, first=len(found))

    def append(self) -> None:
        if not self.holders:
            return
        holder = self.dice.choice(self.holders)
        if len(holder.tokens) % BLOCK_SIZE == 0:
            if self.cache.pool.num_free == 0:
                return
            holder.blocks += self._allocate(holder, 1)
        holder.tokens.append(self.dice.randint(0, 1))
        self._write(holder, first=(len(holder.tokens) - 1) // BLOCK_SIZE)

    def fork(self) -> None:
        """Another choice: full blocks are shared, the last one, if it is full only in part, is copied."""
        if not self.holders:
            return
        holder = self.dice.choice(self.holders)
        num_full = len(holder.tokens) // BLOCK_SIZE
        num_new = len(holder.blocks) - num_full
        if self.cache.pool.num_free < num_new:
            return
        fork = Holder(holder.scope, list(holder.tokens))
        self.cache.hold(holder.blocks[:num_full])
        fork.blocks = holder.blocks[:num_full] + self._allocate(fork, num_new)
        self.holders.append(fork)
        self._write(fork, first=num_full)

    def end_one(self) -> None:
        """Finished, aborted or preempted: the same to the cache."""
        if self.holders:
            holder = self.holders.pop(self.dice.randrange(len(self.holders)))
            self.cache.release(holder.blocks)

    def launch(self) -> None:
        if self.launched - self.retired < 2:
            self.launched += 1
            self.cache.pool.launch(self.launched)
            self.touched.update((block, self.launched) for holder in self.holders for block in holder.blocks)

    def retire(self) -> None:
        if self.retired < self.launched:
            self.retired += 1
            self.cache.pool.retire(self.retired)

    def _allocate(self, holder: Holder, count: int) -> list[int]:
        blocks = self.cache.allocate(count, holder.scope[:8])
        assert all(self.touched.get(block, 0) <= self.retired for block in blocks), "a launched step may write to it"
        return blocks

    def _write(self, holder: Holder, first: int) -> None:
        """Compute blocks first, first + 1, ... and publish the full ones."""
        keys = keys_of(holder.scope, holder.tokens)
        for index in range(first, len(holder.blocks)):
            block = holder.blocks[index]
            assert block != NULL_BLOCK
            others = [other for other in self.holders if other is not holder and block in other.blocks]
            assert not others, "a write to a block that somebody else holds"
            self.content[block] = (holder.scope, tuple(holder.tokens[: (index + 1) * BLOCK_SIZE]))
            if index < len(keys):
                self.cache.publish(block, keys[index])

    def check(self) -> None:
        held = Counter(block for holder in self.holders for block in holder.blocks)
        pool = self.cache.pool
        assert [pool.holders(block) for block in range(1, NUM_BLOCKS + 1)] == [
            held[block] for block in range(1, NUM_BLOCKS + 1)
        ]
        assert pool.num_free + pool.num_leaving + len(held) == NUM_BLOCKS
        by_tenant = {holder.scope[:8]: set[int]() for holder in self.holders}
        for holder in self.holders:
            by_tenant[holder.scope[:8]].update(holder.blocks)
        accounts = self.cache.accounts.snapshot()
        assert {name: account.held_blocks for name, account in accounts.items() if account.held_blocks} == {
            name: len(blocks) for name, blocks in by_tenant.items()
        }
        # Each key is found, evicted, or its block held: nothing is forgotten and nothing counted twice.
        idle = sum(pool.holders(block) == 0 for block in self.cache._key_of)
        assert sum(account.cached_blocks for account in accounts.values()) == idle
        assert all(account.cached_blocks >= 0 for account in accounts.values())

    def end(self) -> None:
        while self.holders:
            self.end_one()
        while self.retired < self.launched:
            self.retire()
        self.check()
        assert self.cache.pool.num_free == NUM_BLOCKS


@counts()
@pytest.mark.timeout(3600)
def test_any_interleaving(first: int, count: int):
    """CACHE-09, CACHE-11: what is found was computed from the same scope and the same tokens, nobody else writes to
    it, and no block is given to anybody whom a launched step could still disturb."""
    interleave(CacheInterleaving, first, count)


TestCacheMachine = machine(CacheInterleaving, CacheInterleaving.RULES, max_examples=60)


SCOPE = CacheScope(b"salt", "fingerprint", "float32")
ADAPTERS = ((AdapterUse("a" * 64), 0), (AdapterUse("b" * 64, 0.5), 3))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(SCOPE, salt=b"sal"), id="salt"),
        pytest.param(replace(SCOPE, base_fingerprint="fingerprin"), id="base"),
        pytest.param(replace(SCOPE, kv_dtype="bfloat16"), id="kv-dtype"),
        # The same bytes one after the other, cut elsewhere: only framing tells them apart.
        pytest.param(replace(SCOPE, salt=b"saltf", base_fingerprint="ingerprint"), id="framing"),
    ],
)
def test_everything_in_the_scope_changes_the_key(other: CacheScope):
    """CACHE-05: base and tenant each have keys of their own."""
    assert other.root() != SCOPE.root()
    assert replace(SCOPE).root() == SCOPE.root()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(ADAPTERS[:1], id="fewer-adapters"),
        pytest.param(((AdapterUse("c" * 64), 0), ADAPTERS[1]), id="other-version"),
        pytest.param(((AdapterUse("a" * 64, 1.1), 0), ADAPTERS[1]), id="scale"),
        pytest.param((ADAPTERS[0], (AdapterUse("b" * 64, 0.5), 4)), id="other-start"),
    ],
)
def test_everything_of_the_adapters_changes_the_key(others: tuple[tuple[AdapterUse, int], ...]):
    """CACHE-01, CACHE-02: no adapter, each version, scale and first position have keys of their own."""
    root = SCOPE.root()
    assert len({root, parent_with_adapters(root, ADAPTERS), parent_with_adapters(root, others)}) == 3
    assert parent_with_adapters(root, ADAPTERS) == parent_with_adapters(SCOPE.root(), list(ADAPTERS))


def test_keys_are_whole_digests():
    """CACHE-04: 256 bits, nothing truncated, so that comparing keys is comparing tokens."""
    assert len(SCOPE.root()) == len(block_key(SCOPE.root(), [1, 2, 3])) == 32
    assert block_key(SCOPE.root(), [1, 2]) != block_key(SCOPE.root(), [1, 2, 0])
    assert block_key(SCOPE.root(), [1, 2]) != block_key(SCOPE.root(), [2, 1])


def test_the_tail_of_a_prefix_is_evicted_first():
    cache = PrefixCache(4, BLOCK_SIZE)
    keys = keys_of("scope", [1, 2, 3, 4, 5, 6])
    blocks = cache.allocate(3, "t")
    for block, key in zip(blocks, keys, strict=True):
        cache.publish(block, key)
    cache.release(blocks)
    cache.allocate(2, "t")  # the never used fourth block, then the last of the three
    assert cache.match(keys) == blocks[:2]
    assert cache.counters.evicted_blocks == 1


def test_accounts_tell_counts_and_are_bounded():
    """Of tenants without a block the longest unused are forgotten; nothing but numbers is kept of any."""
    accounts = KvAccounts(max_accounts=3)
    accounts.of("holds").held_blocks = 1
    for name in ("a", "b", "c", "d"):
        accounts.of(name).queried_tokens += 1
    assert list(accounts.snapshot()) == ["holds", "c", "d"]
    for name in ("x", "y", "z"):
        accounts.of(name).cached_blocks = 1
    assert set(accounts.snapshot()) == {"holds", "x", "y", "z"}


def test_evictions_are_counted_for_whom_they_hurt():
    cache = PrefixCache(2, BLOCK_SIZE)
    for block, key in zip(cache.allocate(2, "mine"), keys_of("scope", [1, 2, 3, 4]), strict=True):
        cache.publish(block, key)
        cache.release([block])
    assert cache.accounts.of("mine").cached_blocks == 2
    cache.allocate(1, "theirs")
    assert (cache.accounts.of("mine").evicted_blocks, cache.accounts.of("mine").cached_blocks) == (1, 1)
    assert cache.accounts.of("theirs").evicted_blocks == 0
