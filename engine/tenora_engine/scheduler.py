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
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request, Sequence, SequenceState
from tenora_engine.wire import AdapterUse


@dataclass(frozen=True, slots=True)
class Limits:
    max_sequences: int  # running at once
    max_batch_tokens: int  # computed in one step

    def __post_init__(self) -> None:
        # Then every running sequence can decode in every step, whatever prompts are being read.
        assert self.max_batch_tokens >= self.max_sequences > 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `tokens[start : start + length]` of a sequence in this step."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """The step reaches the last known token, so that the next one can be drawn."""
        return self.end == len(self.sequence.tokens) and self.sequence.request.max_new_tokens > 0


@dataclass(frozen=True, slots=True)
class Plan:
    chunks: tuple[Chunk, ...]
    num_preempted: int


class Pin(StrEnum):
    """Whether a sequence's adapters lie where the step can use them."""

    PINNED = "pinned"
    LOADING = "loading"
    NO_SLOT = "no_slot"  # loaded, but running sequences hold every slot


class Adapters(Protocol):
    """The second scarce resource. Pinned adapters keep their slot until they are unpinned."""

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool) -> Pin:
        """Pin all of `uses` or none. Without `may_place` only adapters that have a slot already can be pinned."""

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None: ...


class Scheduler:
    def __init__(self, limits: Limits, cache: PrefixCache, adapters: Adapters) -> None:
        self.limits = limits
        self.cache = cache
        self.adapters = adapters
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0

    @property
    def has_sequences(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.extend(request.sequences)

    def schedule(self) -> Plan:
        """Plan one step: take blocks and adapters for it. `commit` says afterwards what was computed."""
        chunks: list[Chunk] = []
        budget = self.limits.max_batch_tokens
        preempted_before = self.num_preemptions

        for sequence in tuple(self.running):
            # An elder one may have preempted it a moment ago.
            if sequence.state is SequenceState.RUNNING and sequence.num_pending == 1 and self._grow(sequence):
                chunks.append(Chunk(sequence, sequence.num_computed, 1))
                budget -= 1
        for sequence in self.running:
            if sequence.num_pending > 1 and budget > 0:
                chunks.append(self._next_chunk(sequence, budget))
                budget -= chunks[-1].length

        num_preempted = self.num_preemptions - preempted_before
        if num_preempted == 0:
            chunks += self._admit(budget)
        return Plan(tuple(chunks), num_preempted)

    def commit(self, chunk: Chunk) -> None:
        """The chunk was computed and its values are sound: count it, and let its full blocks be found."""
        sequence = chunk.sequence
        assert sequence.state is SequenceState.RUNNING
        sequence.num_computed = chunk.end
        num_full = sequence.num_computed // self.cache.block_size
        keys = sequence.block_keys(num_full, self.cache.block_size)
        for index in range(sequence.num_published, num_full):
            self.cache.publish(sequence.blocks[index], keys[index])
        sequence.num_published = max(sequence.num_published, num_full)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever state it is in, with all that it holds. Doing it twice does nothing."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._let_go(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED

    def _next_chunk(self, sequence: Sequence, budget: int) -> Chunk:
        return Chunk(sequence, sequence.num_computed, min(sequence.num_pending, budget))

    def _admit(self, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        may_place = True
        for sequence in tuple(self.waiting):
            if budget == 0 or len(self.running) == self.limits.max_sequences:
                break
            if _waits_for_first_choice(sequence):
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
            self.running.append(sequence)
            sequence.state = SequenceState.RUNNING
            chunks.append(self._next_chunk(sequence, budget))
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
        sequence.num_computed = len(found) * cache.block_size
        sequence.num_published = len(found)
        if not sequence.admitted_before:
            cache.counters.queried += len(sequence.tokens)
            cache.counters.hit += sequence.num_computed
            if sequence.choice == 0:
                request.cached_tokens = sequence.num_computed
        sequence.admitted_before = True
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the sequence's next token, at the youngest's expense. False: it was the youngest itself."""
        while self.cache.blocks_for(len(sequence.tokens)) > len(sequence.blocks):
            if self.cache.pool.num_free > 0:
                sequence.blocks += self.cache.allocate(1)
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._let_go(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = 0
        sequence.num_published = 0
        self.adapters.unpin(sequence.request.adapters)


def _waits_for_first_choice(sequence: Sequence) -> bool:
    """The other choices of a request start when the first one's prompt lies in the cache for them."""
    first = sequence.request.sequences[0]
    return (
        sequence is not first
        and first.state is not SequenceState.FINISHED
        and first.num_computed < len(sequence.request.prompt)
        and sequence.num_generated == 0
    )
