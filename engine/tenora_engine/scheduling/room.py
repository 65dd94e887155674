"""Room for running sequences to grow and for one that waited too long, at the expense of others if need be."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tenora_engine.request import Sequence, SequenceState
from tenora_engine.scheduling.limits import Limits
from tenora_engine.scheduling.preemption import worst_first
from tenora_engine.scheduling.sequences import Sequences


class Room:
    def __init__(self, limits: Limits, sequences: Sequences) -> None:
        self._limits = limits
        self._sequences = sequences
        self._cache = sequences.holdings.cache
        self._cleared_at = -inf  # when others last gave way to one that had waited for too long

    def clear_for(self, sequence: Sequence) -> None:
        """Have others give way to a waiting sequence that lacks nothing but blocks: sequences that said something
        since they started, of tenants that received more than its own. Once per patience, and not in vain."""
        pool, now = self._cache.pool, self._sequences.now
        if sequence.state is not SequenceState.WAITING or now - self._cleared_at < self._limits.patience_s:
            return
        counter = self._sequences.tenant_of(sequence).counter
        victims: list[Sequence] = []
        num_coming = pool.num_leaving
        candidates = self._worst_first(self._sequences.running)
        while self._sequences.lacks(sequence, without=len(victims)) > num_coming:
            candidates = [other for other in candidates if self._sequences.tenant_of(other).counter > counter]
            if not candidates or len(candidates[0].tokens) == candidates[0].num_known_at_start:
                return
            victims.append(candidates.pop(0))
            num_coming += sum(pool.holders(block) == 1 for block in victims[-1].blocks)
        if victims:
            self._cleared_at = now
        for victim in victims:
            self._sequences.preempt(victim)

    def make(self) -> bool:
        """A block for each running sequence that needs one for its next token, others giving way if they must.
        False when somebody gave way or has to wait for blocks that are leaving: then nobody should start."""
        size = self._cache.block_size
        running = self._sequences.running
        growing = [
            sequence
            for sequence in running
            if sequence.num_planned == len(sequence.blocks) * size and not sequence.ends_with_what_is_launched
        ]
        if not growing:
            return True
        preempted_before = self._sequences.num_preemptions
        if self._limits.tenant_blocks is not None:
            for tenant in {sequence.request.tenant for sequence in growing}:
                self._keep_share(tenant, growing, self._limits.tenant_blocks)
        growing = [sequence for sequence in growing if sequence in running]
        pool = self._cache.pool
        while len(growing) > pool.num_free + pool.num_leaving:
            self._sequences.preempt(self._worst_first(running)[0])
            growing = [sequence for sequence in growing if sequence in running]
        num_free = pool.num_free
        for sequence in growing[:num_free]:
            self._sequences.holdings.grow(sequence)
        return len(growing) <= num_free and self._sequences.num_preemptions == preempted_before

    def _keep_share(self, tenant: str, growing: list[Sequence], cap: int) -> None:
        """No tenant grows beyond its share of the blocks: its own sequences give way."""
        running, account = self._sequences.running, self._cache.accounts.of(tenant)
        mine = [sequence for sequence in running if sequence.request.tenant == tenant]
        for victim in self._worst_first(mine):
            num_growing = sum(sequence.request.tenant == tenant and sequence in running for sequence in growing)
            if account.held_blocks + num_growing <= cap:
                return
            self._sequences.preempt(victim)

    def _worst_first(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        return worst_first(sequences, self._sequences.fairness)
