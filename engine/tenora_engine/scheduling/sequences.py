"""All sequences of the engine: those that run, those that wait, and how they come from one to the other."""

from __future__ import annotations

from math import inf

from tenora_engine.fairness import Fairness, Tenant
from tenora_engine.request import Request, Sequence, SequenceState
from tenora_engine.scheduling.holdings import Holdings, Taking
from tenora_engine.scheduling.preemption import SwapCost
from tenora_engine.scheduling.waiting import Waiting


class Sequences:
    def __init__(self, holdings: Holdings, fairness: Fairness, swap_cost: SwapCost) -> None:
        self.holdings = holdings
        self.fairness = fairness
        self.waiting = Waiting()
        self.running: dict[Sequence, None] = {}  # in the order in which they started
        self.now = -inf  # of the last step
        self.num_preemptions = 0
        self.num_swaps = 0  # preemptions that kept what was computed
        self._swap_cost = swap_cost
        self._num_arrived = 0

    def tenant_of(self, sequence: Sequence) -> Tenant:
        return self.fairness[sequence.request.tenant]

    def add(self, request: Request) -> None:
        tenant = self.fairness.arrive(request.tenant, request.weight)
        for sequence in request.sequences:
            self._num_arrived += 1
            sequence.order = self._num_arrived
            self.waiting.add(sequence)
            self.fairness.wait(tenant)

    def start(self, sequence: Sequence, *, may_place: bool, insist: bool) -> Taking:
        """Give a waiting sequence what it needs, and let it run if that was possible."""
        tenant = self.tenant_of(sequence)
        taking = self.holdings.take(sequence, tenant, len(self.running), may_place=may_place, insist=insist)
        if taking is Taking.TAKEN:
            self.waiting.started(sequence, self.now)
            self.fairness.leave(tenant)
            self.running[sequence] = None
            tenant.num_running += 1
            sequence.state = SequenceState.RUNNING
        return taking

    def lacks(self, sequence: Sequence, *, without: int = 0) -> int:
        """Free blocks that there would have to be more, for a waiting sequence to start when `without` of the running
        ones have stopped. Not above 0: none."""
        return self.holdings.lacks(sequence, len(self.running) - without)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and adapters away; it goes on later as if nothing had happened."""
        tenant = self.tenant_of(sequence)
        if self._should_swap(sequence):
            self.holdings.swap_out(sequence, tenant)
            self.num_swaps += 1
        else:
            self.holdings.give_back(sequence, tenant)
        del self.running[sequence]
        tenant.num_running -= 1
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)
        self.waiting.may_be_passed(sequence, self.now)  # somebody may be reading it
        self.fairness.wait(tenant)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever state it is in, with all that it holds. Doing it twice does nothing."""
        if sequence.state is SequenceState.FINISHED:
            return
        tenant = self.tenant_of(sequence)
        if sequence.state is SequenceState.RUNNING:
            del self.running[sequence]
            tenant.num_running -= 1
        else:
            self.waiting.remove(sequence)
            self.fairness.leave(tenant)
        self.holdings.give_back(sequence, tenant)
        sequence.state = SequenceState.FINISHED

    def _should_swap(self, sequence: Sequence) -> bool:
        cache, num_tokens = self.holdings.cache, sequence.num_planned
        num_blocks = cache.blocks_for(num_tokens)
        if not 0 < num_blocks <= self.holdings.host_pool.num_free:
            return False
        # Blocks that others hold too will be found again.
        num_shared = sum(cache.pool.holders(block) > 1 for block in sequence.blocks) if cache.enabled else 0
        num_lost = max(0, num_tokens - num_shared * cache.block_size)
        return self._swap_cost.prefers_swap(num_blocks, num_lost, num_tokens)
