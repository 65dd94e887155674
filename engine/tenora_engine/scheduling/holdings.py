"""What running sequences hold: blocks of the KV cache and pinned adapters, admitted together and given back together.

Nothing is given back under a launched step: blocks wait in their pool, pins here, until that step is retired.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tenora_engine.activation import first_position
from tenora_engine.fairness import Tenant
from tenora_engine.kv.block_pool import BlockPool
from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, Sequence, SequenceState
from tenora_engine.scheduling.limits import Limits
from tenora_engine.scheduling.plan import Adapters, BlockCopy, Pin, Swap
from tenora_engine.wire import AdapterUse


class Taking(StrEnum):
    """What came of an attempt to give a waiting sequence all that it needs."""

    TAKEN = "taken"
    NOT_YET = "not_yet"  # its adapter is loading, or its tenant's share of adapters is in use
    NO_ROOM = "no_room"  # on the host, for its adapter
    NO_SLOT = "no_slot"
    NO_BLOCKS = "no_blocks"
    OVER_SHARE = "over_share"  # its tenant holds as many blocks as it may


_UNPINNED: Final = {Pin.LOADING: Taking.NOT_YET, Pin.NO_ROOM: Taking.NO_ROOM, Pin.NO_SLOT: Taking.NO_SLOT}


@dataclass(slots=True)
class Moves:
    """Block copies that a step begins with."""

    swap_out: list[Swap] = field(default_factory=list)
    swap_in: list[Swap] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Need:
    """How a waiting sequence would come to its blocks."""

    found: list[int]  # blocks that hold its first tokens already
    num_present: int  # tokens that need not be computed any more
    num_new: int
    fork_of: Sequence | None


class Holdings:
    def __init__(self, limits: Limits, cache: PrefixCache, adapters: Adapters, host_pool: BlockPool) -> None:
        self.cache = cache
        self.adapters = adapters
        self.host_pool = host_pool
        self._moves = Moves()
        self._limits = limits
        self._launched = 0
        # Always one ahead: what is given up on the host may be read or written by the step that is planned next.
        host_pool.launch(1)
        self._retired = 0
        self._leaving_pins: deque[tuple[int, tuple[AdapterUse, ...]]] = deque()

    # -- the steps ------------------------------------------------------------------------------------------------

    def launch(self) -> Moves:
        """The next step is planned; with which moves it begins."""
        self._launched += 1
        self.cache.pool.launch(self._launched)
        self.host_pool.launch(self._launched + 1)
        moves, self._moves = self._moves, Moves()
        return moves

    def retire(self, number: int) -> None:
        self.cache.pool.retire(number)
        self.host_pool.retire(number)
        self._retired = number
        while self._leaving_pins and self._leaving_pins[0][0] <= number:
            self.adapters.unpin(self._leaving_pins.popleft()[1])

    # -- taking ---------------------------------------------------------------------------------------------------

    def take(
        self, sequence: Sequence, tenant: Tenant, num_running: int, *, may_place: bool, insist: bool = False
    ) -> Taking:
        """Give a waiting sequence its adapters and the blocks of its known tokens, all or nothing."""
        uses = sequence.request.adapters
        cap = self._limits.tenant_adapters
        if cap is not None and len(tenant.adapters) + sum(use.digest not in tenant.adapters for use in uses) > cap:
            return Taking.NOT_YET
        pin = self.adapters.pin(uses, may_place=may_place, insist=insist)
        if pin is not Pin.PINNED:
            return _UNPINNED[pin]
        self._find_starts(sequence.request)
        need = self._need(sequence)
        if self._exceeds_share(need, tenant):
            self.adapters.unpin(uses)
            return Taking.OVER_SHARE
        if self._lacks(need, num_running) > 0:
            self.adapters.unpin(uses)
            return Taking.NO_BLOCKS
        self._take_blocks(sequence, need)
        tenant.adapters.update(use.digest for use in uses)
        return Taking.TAKEN

    def lacks(self, sequence: Sequence, num_running: int) -> int:
        return self._lacks(self._need(sequence), num_running)

    def grow(self, sequence: Sequence) -> None:
        sequence.blocks += self.cache.allocate(1, sequence.request.tenant)

    def _find_starts(self, request: Request) -> None:
        """Once, as soon as its adapters are loaded and say what activates them: a prompt never changes."""
        if len(request.starts) < len(request.adapters):
            invocations = [self.adapters.invocation_of(use.digest) for use in request.adapters]
            request.starts = tuple(first_position(request.prompt, invocation) for invocation in invocations)

    def _need(self, sequence: Sequence) -> _Need:
        cache, request = self.cache, sequence.request
        found: list[int] = []
        # The last token is always computed: its logits are what the step is for. A step that is launched still writes
        # before the blocks are swapped.
        num_present = min(sequence.num_planned, len(sequence.tokens) - 1) if sequence.host_blocks else 0
        num_full = (len(sequence.tokens) - 1) // cache.block_size
        first = request.sequences[0]
        forks = (
            sequence is not first
            and not sequence.admitted_before
            and first.state is SequenceState.RUNNING
            and first.num_computed >= len(request.prompt)
        )
        if forks:
            found = first.blocks[:num_full]
            num_present = len(request.prompt) - 1
        elif cache.enabled and not sequence.wants_prompt_logprobs:
            found = cache.match(sequence.block_keys(num_full, cache.block_size))
            num_present = max(num_present, len(found) * cache.block_size)
        num_new = cache.blocks_for(len(sequence.tokens)) - len(found)
        return _Need(found, num_present, num_new, first if forks else None)

    def _exceeds_share(self, need: _Need, tenant: Tenant) -> bool:
        cap = self._limits.tenant_blocks
        if cap is None:
            return False
        num_idle = sum(self.cache.pool.holders(block) == 0 for block in need.found)
        return self.cache.accounts.of(tenant.name).held_blocks + need.num_new + num_idle > cap

    def _lacks(self, need: _Need, num_running: int) -> int:
        # What the running ones will grow by in the next step, so that a start is not undone at once.
        reserve = -(-num_running // self.cache.block_size)
        return need.num_new + reserve - (self.cache.pool.num_free - self.cache.num_free_among(need.found))

    def _take_blocks(self, sequence: Sequence, need: _Need) -> None:
        cache, request, found = self.cache, sequence.request, need.found
        cache.hold(found)
        new = cache.allocate(need.num_new, request.tenant)
        if need.fork_of is not None and need.num_present > len(found) * cache.block_size:
            self._moves.copies.append(BlockCopy(need.fork_of.blocks[len(found)], new[0]))
        sequence.blocks = found + new
        if sequence.host_blocks:
            pairs = zip(sequence.blocks, sequence.host_blocks, strict=False)  # the rest is to be computed
            self._moves.swap_in += [Swap(device, host) for device, host in pairs][len(found) :]
            self._release_host(sequence)
            sequence.num_computed = max(sequence.num_computed, len(found) * cache.block_size)
        else:
            sequence.num_computed = need.num_present
        sequence.num_planned = need.num_present
        sequence.num_published = len(found)
        if not sequence.admitted_before and need.fork_of is None:
            cache.count(request.tenant, len(sequence.tokens), sequence.num_computed)
            if sequence.choice == 0:
                request.cached_tokens = sequence.num_computed
        if not sequence.admitted_before:
            sequence.num_charged = sequence.num_computed
        sequence.admitted_before = True
        sequence.num_known_at_start = len(sequence.tokens)

    def publish(self, sequence: Sequence) -> None:
        """Let its full blocks be found, unless it has lost them meanwhile."""
        num_full = sequence.num_computed // self.cache.block_size if sequence.blocks else 0
        keys = sequence.block_keys(num_full, self.cache.block_size)
        for index in range(sequence.num_published, num_full):
            self.cache.publish(sequence.blocks[index], keys[index])
            sequence.num_published += 1

    # -- giving back ----------------------------------------------------------------------------------------------

    def give_back(self, sequence: Sequence, tenant: Tenant) -> None:
        """All that a sequence holds. What was computed for it is lost to it, and can be found in the cache."""
        if sequence.blocks:
            self._release(sequence, tenant)
        if sequence.host_blocks:
            self._release_host(sequence)
        sequence.num_computed = sequence.num_planned = 0
        sequence.attempt += 1

    def swap_out(self, sequence: Sequence, tenant: Tenant) -> None:
        """All that a sequence holds, with a copy of its blocks on the host, for which there must be room."""
        kept = sequence.blocks[: self.cache.blocks_for(sequence.num_planned)]
        sequence.host_blocks = self.host_pool.take(len(kept))
        self._moves.swap_out += map(Swap, kept, sequence.host_blocks)
        self._release(sequence, tenant)

    def trim(self, sequence: Sequence) -> None:
        """Give back blocks beyond its known tokens: of guesses that were wrong."""
        keep = self.cache.blocks_for(len(sequence.tokens))
        if keep < len(sequence.blocks):
            self.cache.release(sequence.blocks[keep:])
            del sequence.blocks[keep:]

    def _release(self, sequence: Sequence, tenant: Tenant) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_published = 0
        uses = sequence.request.adapters
        for use in uses:
            tenant.adapters[use.digest] -= 1
            if not tenant.adapters[use.digest]:
                del tenant.adapters[use.digest]
        if self._launched == self._retired:
            self.adapters.unpin(uses)
        else:
            self._leaving_pins.append((self._launched, uses))

    def _release_host(self, sequence: Sequence) -> None:
        self.host_pool.release(sequence.host_blocks)
        sequence.host_blocks = []
