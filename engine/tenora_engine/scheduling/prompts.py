"""What decoding leaves of a step's token budget goes to prompts, running ones and waiting ones, by turns."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from math import inf
from typing import Final

from tenora_engine.request import Sequence, SequenceState
from tenora_engine.scheduling.holdings import Taking
from tenora_engine.scheduling.limits import Limits
from tenora_engine.scheduling.plan import Adapters, Chunk
from tenora_engine.scheduling.sequences import Sequences
from tenora_engine.scheduling.turns import Lane, Turns
from tenora_engine.wire import AdapterUse, Priority

# Others may pass one that lacks these.
_LACKS_SOMETHING: Final = (Taking.NO_SLOT, Taking.NO_ROOM, Taking.NO_BLOCKS)


@dataclass(slots=True)
class Handout:
    """What one step has to give to prompts, and what it has given."""

    budget: int  # tokens
    chunks: list[Chunk]
    may_place: bool = True  # False: the next free slot is somebody's already
    closed: bool = False  # nobody starts any more: the blocks are kept for one that was passed for too long
    ceiling: float = inf  # nor does one who received more than this: somebody less served lacks blocks
    claims: list[tuple[AdapterUse, ...]] = field(default_factory=list)  # of those passed for too long
    draining: frozenset[str] = frozenset()  # adapters that nobody new may use, for the sake of the claims

    def add_chunk(self, sequence: Sequence) -> None:
        """As much of a sequence as the budget allows."""
        pending = sequence.num_pending
        length = min(pending, self.budget)
        samples = length == pending and sequence.request.max_new_tokens > 0
        self.chunks.append(Chunk(sequence, sequence.num_planned, length, samples, sequence.attempt))
        self.budget -= length
        sequence.num_planned += length
        sequence.num_unknown += samples


class Prompts:
    def __init__(self, limits: Limits, sequences: Sequences, adapters: Adapters) -> None:
        self.in_need: Sequence | None = None  # the first that was passed for twice its patience, if it lacks blocks
        self._limits = limits
        self._sequences = sequences
        self._adapters = adapters

    def hand_out(self, handout: Handout, running: Many[Sequence], *, may_start: bool) -> None:
        """`running`: sequences whose prompts are computed in part. `may_start`: those that wait may start."""
        self.in_need = None
        sequences, limits = self._sequences, self._limits
        batch_is_due = sequences.waiting.batch_waits_for(sequences.now) >= limits.batch_patience_s
        may_start = may_start and len(sequences.waiting) > 0 and len(sequences.running) < limits.max_sequences
        if may_start:
            self._start_the_passed(handout)
        elif not running:
            return
        turns = Turns(running, sequences.waiting if may_start else None, sequences.fairness, batch_is_due=batch_is_due)
        while handout.budget > 0 and (lane := turns.pop()) is not None:
            if lane.running:
                self._add_chunk(handout, lane.running.popleft())
            elif self._start_next(lane, handout):
                if lane.priority is Priority.BATCH:
                    turns.batch_had_its_turn()
            else:
                continue
            turns.push(lane)

    def _start_the_passed(self, handout: Handout) -> None:
        """First come those that were passed for too long, and what they lack is kept for them.

        One that lacks blocks is passed by nobody for as long again. Then those who were served more than its tenant
        give way (`Room.clear_for`). If that does not help, only ones that were served less are in its way: it waits for
        them to end, and to hold up the others for that time would help nobody.
        """
        sequences, patience = self._sequences, self._limits.patience_s
        for index, (sequence, seconds) in enumerate(sequences.waiting.passed_for(patience, sequences.now)):
            taking = self._start(sequence, handout, insist=index == 0)
            if taking is Taking.NO_BLOCKS:
                if index == 0 and seconds >= 2 * patience:
                    self.in_need = sequence
                    handout.closed = sequences.lacks(sequence) <= sequences.holdings.cache.pool.num_leaving
                else:
                    handout.closed = seconds < 2 * patience
                if handout.closed:
                    return
            elif taking in (Taking.NO_SLOT, Taking.NO_ROOM):
                handout.claims.append(sequence.request.adapters)
                handout.draining = self._adapters.drain_for(handout.claims)

    def _start_next(self, lane: Lane, handout: Handout) -> bool:
        """Start the lane's first sequence that can. False: none can in this step."""
        while lane.waiting and not handout.closed and lane.tenant.counter <= handout.ceiling:
            sequence = lane.waiting.popleft()
            if sequence.state is not SequenceState.WAITING:
                continue  # it has just started, as one that was passed for too long
            taking = self._start(sequence, handout)
            if taking is Taking.TAKEN:
                return True
            if taking in _LACKS_SOMETHING and not lane.passed:
                lane.passed = True  # of one tenant only the first that lacks something has a claim on it
                self._sequences.waiting.may_be_passed(sequence, self._sequences.now)
            if taking is Taking.NO_BLOCKS:
                handout.ceiling = min(handout.ceiling, lane.tenant.counter + self._limits.lead)
            if taking in (Taking.NO_BLOCKS, Taking.OVER_SHARE):
                break  # its tenant's next ones do not pass it
        return False

    def _start(self, sequence: Sequence, handout: Handout, *, insist: bool = False) -> Taking:
        request, sequences = sequence.request, self._sequences
        if handout.budget == 0 or len(sequences.running) == self._limits.max_sequences:
            return Taking.NOT_YET
        if not request.ready or sequence.num_unknown > 0 or sequence.waits_for_first_choice:
            return Taking.NOT_YET
        if handout.draining and any(use.digest in handout.draining for use in request.adapters):
            return Taking.NO_SLOT
        taking = sequences.start(sequence, may_place=handout.may_place, insist=insist or not sequences.running)
        if taking is Taking.TAKEN:
            self._add_chunk(handout, sequence)
        elif taking is Taking.NO_SLOT:
            # Its turn for the next free slot: those behind it may start only if they need no new one.
            handout.may_place = False
        return taking

    def _add_chunk(self, handout: Handout, sequence: Sequence) -> None:
        """Its tenant is charged for prompt tokens as they are computed, and once: not for what a preemption costs."""
        handout.add_chunk(sequence)
        num_prompt = min(sequence.num_planned, len(sequence.request.prompt))
        if num_prompt > sequence.num_charged:
            self._sequences.fairness.charge_input(
                self._sequences.tenant_of(sequence), num_prompt - sequence.num_charged
            )
            sequence.num_charged = num_prompt
