"""Block pool and prefix cache against a naive model, and the keys' isolation. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from tenora_engine.kv.block_pool import NULL_BLOCK
from tenora_engine.kv.prefix_cache import CacheScope, PrefixCache, block_key
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


class CacheMachine(RuleBasedStateMachine):
    """CACHE-11: what is found was computed from the same scope and the same tokens, and nobody else writes to it.

    The naive model remembers, for every block, what its last owner wrote.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
        self.holders: list[Holder] = []
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}  # block -> scope and all tokens up to its end

    live = Bundle("live")

    @rule(
        target=live,
        scope=st.sampled_from(["tenant-a", "tenant-b", "tenant-a/adapter-v1", "tenant-a/adapter-v2"]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    )
    def start(self, scope: str, tokens: list[int]) -> Holder:
        holder = Holder(scope, tokens)
        keys = keys_of(scope, tokens)[: (len(tokens) - 1) // BLOCK_SIZE]
        found = self.cache.match(keys)
        for index, block in enumerate(found):
            end = (index + 1) * BLOCK_SIZE
            assert self.content[block] == (scope, tuple(tokens[:end])), "a hit on other content"
        num_new = self.cache.blocks_for(len(tokens)) - len(found)
        if self.cache.pool.num_free - self.cache.num_free_among(found) < num_new:
            holder.tokens = []
            return holder
        self.cache.hold(found)
        holder.blocks = found + self.cache.allocate(num_new, "t")
        self.holders.append(holder)
        self._write(holder, first=len(found))
        return holder

    @rule(holder=live, token=st.integers(0, 1))
    def append(self, holder: Holder, token: int) -> None:
        if not holder.tokens:
            return
        if len(holder.tokens) % BLOCK_SIZE == 0:
            if self.cache.pool.num_free == 0:
                return
            holder.blocks += self.cache.allocate(1, "t")
        holder.tokens.append(token)
        self._write(holder, first=(len(holder.tokens) - 1) // BLOCK_SIZE)

    @rule(holder=consumes(live))
    def end(self, holder: Holder) -> None:
        """Finished, aborted or preempted: the same to the cache."""
        if holder.tokens:
            self.cache.release(holder.blocks)
            self.holders.remove(holder)
            holder.tokens, holder.blocks = [], []

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

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        held: dict[int, int] = {}
        for holder in self.holders:
            for block in holder.blocks:
                held[block] = held.get(block, 0) + 1
        for block in range(1, NUM_BLOCKS + 1):
            assert self.cache.pool.holders(block) == held.get(block, 0)
        assert self.cache.pool.num_free + len(held) == NUM_BLOCKS

    @precondition(lambda self: not self.holders)
    @invariant()
    def all_is_free_at_rest(self) -> None:
        assert self.cache.pool.num_free == NUM_BLOCKS


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase


SCOPE = CacheScope(b"salt", "fingerprint", "float32", (AdapterUse("a" * 64), AdapterUse("b" * 64, 0.5)))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(SCOPE, salt=b"sal"), id="salt"),
        pytest.param(replace(SCOPE, base_fingerprint="fingerprin"), id="base"),
        pytest.param(replace(SCOPE, kv_dtype="bfloat16"), id="kv-dtype"),
        pytest.param(replace(SCOPE, adapters=()), id="no-adapter"),
        pytest.param(replace(SCOPE, adapters=SCOPE.adapters[:1]), id="fewer-adapters"),
        pytest.param(replace(SCOPE, adapters=(AdapterUse("c" * 64), SCOPE.adapters[1])), id="other-version"),
        pytest.param(replace(SCOPE, adapters=(AdapterUse("a" * 64, 1.1), SCOPE.adapters[1])), id="scale"),
        # The same bytes one after the other, cut elsewhere: only framing tells them apart.
        pytest.param(replace(SCOPE, salt=b"saltf", base_fingerprint="ingerprint"), id="framing"),
    ],
)
def test_everything_in_the_scope_changes_the_key(other: CacheScope):
    """CACHE-01, CACHE-02, CACHE-05: base, adapter version and tenant each have keys of their own."""
    assert other.root() != SCOPE.root()
    assert replace(SCOPE).root() == SCOPE.root()


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
