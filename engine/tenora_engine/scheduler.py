"""Who computes how many tokens in the next step. Pure policy: no torch, no clock, no socket.

There is no prefill phase and no decode phase: each sequence has computed tokens that chase its known tokens, and a step
gives each a number of tokens under a token budget and a sequence budget. A long prompt, a prefix found in the cache, a
recompute after preemption, a guess to be verified and a decode step are all cases of that one rule.

A step is planned in this order:

1. room: a running sequence whose next token needs a block gets one, at the expense of the worst one if there is none;
2. decoding: every running sequence that lacks one token gets it, so that whoever reads along is never held up;
3. prompts: the rest of the token budget goes to running and waiting prompts by turns (`scheduling.prompts`);
4. guesses: what nobody wanted goes to guesses of the next tokens.

Whose turn it is: first, one whose turn it was and who was passed by others for too long; then the interactive class
before the batch class (which has a turn of its own every so often), within it the tenant that received least for its
weight, within it the request that arrived first. A sequence takes all blocks for its known tokens when it starts, so
only generated tokens make it grow.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from tenora_engine.fairness import Fairness
from tenora_engine.kv.block_pool import BlockPool
from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, Sequence, SequenceState
from tenora_engine.scheduling.holdings import Holdings
from tenora_engine.scheduling.limits import Limits
from tenora_engine.scheduling.plan import Adapters, BlockCopy, Chunk, Drafter, Pin, Plan, Swap
from tenora_engine.scheduling.preemption import SwapCost
from tenora_engine.scheduling.prompts import Handout, Prompts
from tenora_engine.scheduling.room import Room
from tenora_engine.scheduling.sequences import Sequences

__all__ = ["Adapters", "BlockCopy", "Chunk", "Drafter", "Limits", "Pin", "Plan", "Scheduler", "Swap", "SwapCost"]


class Scheduler:
    """`schedule` plans a step, the core launches it, `commit` takes in what came of each chunk, `retire` ends the step.
    The next step may be planned while one is launched."""

    def __init__(
        self,
        limits: Limits,
        cache: PrefixCache,
        adapters: Adapters,
        drafter: Drafter | None = None,
        *,
        fairness: Fairness | None = None,
        host_blocks: int = 0,
        swap_cost: SwapCost | None = None,
    ) -> None:
        """`host_blocks`: room for what is swapped out; without it every preempted sequence is computed again."""
        self.limits = limits
        self.cache = cache
        self.drafter = drafter
        self.fairness = Fairness() if fairness is None else fairness
        self.host_pool = BlockPool(host_blocks)
        self._holdings = Holdings(limits, cache, adapters, self.host_pool)
        self._sequences = Sequences(self._holdings, self.fairness, swap_cost or SwapCost())
        self._room = Room(limits, self._sequences)
        self._prompts = Prompts(limits, self._sequences, adapters)
        self._last_number = 0
        self.running = self._sequences.running
        self.waiting = self._sequences.waiting

    @property
    def has_sequences(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    @property
    def num_preemptions(self) -> int:
        return self._sequences.num_preemptions

    @property
    def num_swaps(self) -> int:
        """Preemptions that kept on the host what was computed."""
        return self._sequences.num_swaps

    def add(self, request: Request) -> None:
        self._sequences.add(request)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever state it is in, with all that it holds. Doing it twice does nothing."""
        self._sequences.finish(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and adapters away; it goes on later as if nothing had happened. Between
        two steps only."""
        self._sequences.preempt(sequence)

    def schedule(self, now: float) -> Plan:
        """Plan one step: take blocks and adapters for it. `now` is in seconds, on any clock that does not go back."""
        self._last_number += 1
        self._sequences.now = now
        preempted_before = self.num_preemptions
        if self._prompts.in_need is not None:
            self._room.clear_for(self._prompts.in_need)
        nobody_lacks = self._room.make()
        chunks, prompts = self._decode()
        handout = Handout(self.limits.max_batch_tokens - len(chunks), chunks)
        self._prompts.hand_out(handout, prompts, may_start=nobody_lacks)
        if self.drafter is not None:
            self._draft(self.drafter, handout)
        moves = self._holdings.launch()
        return Plan(
            self._last_number,
            tuple(chunks),
            tuple(moves.swap_out),
            tuple(moves.swap_in),
            tuple(moves.copies),
            self.num_preemptions - preempted_before,
        )

    def commit(self, chunk: Chunk, drawn: Many[int]) -> list[int]:
        """The chunk was computed, its values are sound and these tokens were drawn. Those that the sequence takes.

        `drawn`: one token, after accepted drafts if there are any; none for a chunk that does not sample. A sequence
        that was preempted meanwhile takes its tokens too; one that is finished takes none.
        """
        sequence = chunk.sequence
        if sequence.state is SequenceState.FINISHED:
            return []
        if chunk.samples:
            sequence.num_unknown -= 1
        taken: list[int] = []
        for token_id in drawn:
            sequence.append(token_id)
            taken.append(token_id)
            if sequence.finish_reason is not None:
                break
        if taken:
            self.fairness.charge_output(self.fairness[sequence.request.tenant], len(taken))
        if chunk.attempt == sequence.attempt:
            num_wrong = len(chunk.drafts) - (len(taken) - 1) if chunk.drafts else 0
            sequence.num_computed = max(sequence.num_computed, chunk.start + chunk.length - num_wrong)
            if chunk.drafts:
                sequence.num_planned = sequence.num_computed
                self._holdings.trim(sequence)
            if sequence.num_computed >= (sequence.num_published + 1) * self.cache.block_size:
                self._holdings.publish(sequence)
        return taken

    def retire(self, plan: Plan) -> None:
        """Every chunk of this plan was committed or dropped: what was given up while it was launched is free now."""
        self._holdings.retire(plan.number)

    def _decode(self) -> tuple[list[Chunk], list[Sequence]]:
        """A chunk for each running sequence that lacks one token and has room for it; those that lack more."""
        chunks: list[Chunk] = []
        prompts: list[Sequence] = []
        size = self.cache.block_size
        for sequence in self.running:
            planned = sequence.num_planned
            pending = len(sequence.tokens) + sequence.num_unknown - planned
            if pending > 1:
                prompts.append(sequence)
            elif pending == 1 and planned < len(sequence.blocks) * size:
                if sequence.num_unknown and sequence.ends_with_what_is_launched:
                    continue
                samples = sequence.request.max_new_tokens > 0
                chunks.append(Chunk(sequence, planned, 1, samples, sequence.attempt))
                sequence.num_planned = planned + 1
                sequence.num_unknown += samples
        return chunks, prompts

    def _draft(self, drafter: Drafter, handout: Handout) -> None:
        """Add guesses to decode chunks while there is budget. They take free blocks only when nobody waits."""
        size = self.cache.block_size
        for chunk in handout.chunks:
            sequence = chunk.sequence
            if handout.budget == 0:
                break
            if chunk.length != 1 or sequence.num_planned != len(sequence.tokens) or not chunk.samples:
                continue  # not all of it is known, or it is a prompt
            room = len(sequence.blocks) * size - sequence.num_planned
            if len(self.waiting) == 0:
                room += self._num_spare_blocks(sequence) * size
            limit = min(handout.budget, room, sequence.request.max_new_tokens - sequence.num_generated - 1)
            if limit <= 0:
                continue
            chunk.drafts = drafter.propose(sequence, limit)
            assert len(chunk.drafts) <= limit
            chunk.length += len(chunk.drafts)
            sequence.num_planned += len(chunk.drafts)
            handout.budget -= len(chunk.drafts)
            while sequence.num_planned > len(sequence.blocks) * size:
                self._holdings.grow(sequence)

    def _num_spare_blocks(self, sequence: Sequence) -> int:
        """Free blocks that it may take without keeping anybody from growing in the next step."""
        spare = self.cache.pool.num_free - len(self.running)
        if self.limits.tenant_blocks is not None:
            held = self.cache.accounts.of(sequence.request.tenant).held_blocks
            spare = min(spare, self.limits.tenant_blocks - held)
        return max(0, spare)
