"""Who computes how many tokens in the next step. Pure policy: no torch, no clock, no socket.

There is no prefill phase and no decode phase: each sequence has computed tokens that chase its known tokens, and a step
gives each a number of tokens under a token budget and a sequence budget. A long prompt, a prefix found in the cache, a
recompute after preemption and a decode step are all cases of that one rule.

Order within a step: sequences that lack one token (they are being read by somebody) first, then longer ones, then the
waiting queue. A sequence takes all blocks for its known tokens when it is admitted, so only generated tokens make it
grow; when the pool is empty the youngest sequence gives its blocks back and recomputes later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass

from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, Sequence, SequenceState
from tenora_engine.scheduling.plan import Adapters, BlockCopy, Chunk, Drafter, Pin, Plan, Swap
from tenora_engine.wire import AdapterUse

__all__ = ["Adapters", "BlockCopy", "Chunk", "Drafter", "Limits", "Pin", "Plan", "Scheduler", "Swap"]


@dataclass(frozen=True, slots=True)
class Limits:
    max_sequences: int  # running at once
    max_batch_tokens: int  # computed in one step

    def __post_init__(self) -> None:
        # Then every running sequence can decode in every step, whatever prompts are being read.
        assert self.max_batch_tokens >= self.max_sequences > 0


class Scheduler:
    """`schedule` plans a step, the core launches it, `commit` takes in what came of each chunk, `retire` ends the step.
    The next step may be planned while one is launched."""

    def __init__(self, limits: Limits, cache: PrefixCache, adapters: Adapters, drafter: Drafter | None = None) -> None:
        self.limits = limits
        self.cache = cache
        self.adapters = adapters
        self.drafter = drafter
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.num_preemptions = 0
        self._last_planned = 0
        self._last_retired = 0
        self._limbo: deque[tuple[int, list[int], tuple[AdapterUse, ...]]] = deque()

    @property
    def has_sequences(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.extend(request.sequences)

    def schedule(self, now: float) -> Plan:
        """Plan one step: take blocks and adapters for it."""
        chunks: list[Chunk] = []
        budget = self.limits.max_batch_tokens
        preempted_before = self.num_preemptions

        for sequence in tuple(self.running):
            # An elder one may have preempted it a moment ago.
            if sequence.state is SequenceState.RUNNING and _wants(sequence) == 1 and self._grow(sequence):
                chunks.append(self._plan_chunk(sequence, 1))
                budget -= 1
        for sequence in self.running:
            if _wants(sequence) > 1 and budget > 0:
                chunks.append(self._plan_chunk(sequence, budget))
                budget -= chunks[-1].length

        num_preempted = self.num_preemptions - preempted_before
        if num_preempted == 0:
            chunks += self._admit(budget)
        self._last_planned += 1
        return Plan(self._last_planned, tuple(chunks), num_preempted=num_preempted)

    def commit(self, chunk: Chunk, drawn: Many[int]) -> list[int]:
        """The chunk was computed, its values are sound and these tokens were drawn. Those that the sequence takes.

        `drawn`: one token, after accepted drafts if there are any; none for a chunk that does not sample. A sequence
        that was preempted meanwhile takes its tokens too; one that is finished takes none.
        """
        sequence = chunk.sequence
        if sequence.state is SequenceState.FINISHED:
            return []
        sequence.num_unknown -= chunk.samples
        if chunk.attempt == sequence.num_preemptions:
            sequence.num_computed = chunk.end - len(chunk.drafts) + max(0, len(drawn) - 1)
            if chunk.drafts:
                sequence.num_planned = sequence.num_computed
        taken: list[int] = []
        for token_id in drawn:
            sequence.append(token_id)
            taken.append(token_id)
            if sequence.finish_reason is not None:
                break
        self._publish(sequence)
        return taken

    def retire(self, plan: Plan) -> None:
        """Every chunk of this plan was committed or dropped: what was given up while it was launched is free now."""
        self._last_retired = plan.number
        while self._limbo and self._limbo[0][0] <= plan.number:
            _, blocks, uses = self._limbo.popleft()
            self.cache.release(blocks)
            self.adapters.unpin(uses)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever state it is in, with all that it holds. Doing it twice does nothing."""
        if sequence.state is SequenceState.RUNNING:
            del self.running[sequence]
            self._let_go(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and adapters away; it goes on later as if nothing had happened."""
        del self.running[sequence]
        self._let_go(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _plan_chunk(self, sequence: Sequence, budget: int) -> Chunk:
        pending = sequence.num_pending
        length = min(pending, budget)
        samples = length == pending and sequence.request.max_new_tokens > 0
        chunk = Chunk(sequence, sequence.num_planned, length, samples, sequence.num_preemptions)
        sequence.num_planned += length
        sequence.num_unknown += samples
        return chunk

    def _publish(self, sequence: Sequence) -> None:
        num_full = min(sequence.num_computed, len(sequence.tokens)) // self.cache.block_size
        keys = sequence.block_keys(num_full, self.cache.block_size)
        for index in range(sequence.num_published, num_full):
            self.cache.publish(sequence.blocks[index], keys[index])
        sequence.num_published = max(sequence.num_published, num_full)

    def _admit(self, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        may_place = True
        for sequence in tuple(self.waiting):
            if budget == 0 or len(self.running) == self.limits.max_sequences:
                break
            if not sequence.request.ready or sequence.num_unknown or _waits_for_first_choice(sequence):
                continue
            uses = sequence.request.adapters
            pin = self.adapters.pin(uses, may_place=may_place)
            if pin is not Pin.PINNED:
                # Its turn for the next free slot: those behind it may pass only if they need no new slot.
                may_place = may_place and pin is not Pin.NO_SLOT
                continue
            if not self._take_blocks(sequence):
                # Nobody passes one that waits for blocks, or a long prompt would never find enough of them.
                self.adapters.unpin(uses)
                break
            self.waiting.remove(sequence)
            self.running[sequence] = None
            sequence.state = SequenceState.RUNNING
            chunks.append(self._plan_chunk(sequence, budget))
            budget -= chunks[-1].length
        return chunks

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks of its known tokens, those in the cache included. False: not enough."""
        cache, request = self.cache, sequence.request
        found: list[int] = []
        if cache.enabled and not sequence.wants_prompt_logprobs:
            # The last token is always computed: its logits are what the step is for.
            num_full = (len(sequence.tokens) - 1) // cache.block_size
            found = cache.match(sequence.block_keys(num_full, cache.block_size))
        num_new = cache.blocks_for(len(sequence.tokens)) - len(found)
        reserve = 1 if self.running else 0
        if cache.pool.num_free - cache.num_idle(found) < num_new + reserve:
            return False
        cache.hold(found)
        sequence.blocks = found + cache.allocate(num_new)
        sequence.num_computed = sequence.num_planned = len(found) * cache.block_size
        sequence.num_published = len(found)
        if not sequence.admitted_before:
            cache.counters.queried += len(sequence.tokens)
            cache.counters.hit += sequence.num_computed
            if sequence.choice == 0:
                request.cached_tokens = sequence.num_computed
        sequence.admitted_before = True
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the sequence's next token, at the youngest's expense. False: not in this step."""
        while self.cache.blocks_for(sequence.num_planned + 1) > len(sequence.blocks):
            if self.cache.pool.num_free > 0:
                sequence.blocks += self.cache.allocate(1)
            elif self._limbo:
                return False  # blocks are on their way
            else:
                victim = next(reversed(self.running))
                self.preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _let_go(self, sequence: Sequence) -> None:
        if self._last_retired == self._last_planned:
            self.cache.release(sequence.blocks)
            self.adapters.unpin(sequence.request.adapters)
        else:
            self._limbo.append((self._last_planned, sequence.blocks, sequence.request.adapters))
        sequence.blocks = []
        sequence.num_computed = sequence.num_planned = 0
        sequence.num_published = 0


def _wants(sequence: Sequence) -> int:
    """Tokens to hand out, unless it surely ends with what is launched."""
    if sequence.num_unknown and sequence.num_generated + sequence.num_unknown >= sequence.request.max_new_tokens:
        return 0
    return sequence.num_pending


def _waits_for_first_choice(sequence: Sequence) -> bool:
    """The other choices of a request start when the first one's prompt lies in the cache for them."""
    first = sequence.request.sequences[0]
    return (
        sequence is not first
        and first.state is not SequenceState.FINISHED
        and first.num_computed < len(sequence.request.prompt)
        and sequence.num_generated == 0
    )
