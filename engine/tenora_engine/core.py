"""The engine core: plans a step, launches it, commits what came of it; knows no socket.

Plan, launch and commit are apart, so that the next step can be planned and launched while one is computed ("ahead").
What is committed is what was launched: a part of a step belongs to a sequence, never to an id or a slot, and is dropped
when that sequence has ended meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tenora_engine.admission import Capacity, admit
from tenora_engine.drawing import ChunkResult, Draw, Failure, wanted
from tenora_engine.errors import AdapterUnavailable, Refused
from tenora_engine.executor import Executor, Launch, StepResults
from tenora_engine.grammar.grammars import Grammars
from tenora_engine.live import LiveRequests, News
from tenora_engine.lora.residency import Residency
from tenora_engine.request import Request, RequestKey, Sequence, SequenceState
from tenora_engine.scheduler import Chunk, Plan, Scheduler
from tenora_engine.speculation import Speculator
from tenora_engine.wire import FailCode, FinishReason, Grammar, Submit

log = logging.getLogger(__name__)

GRAMMAR_FAILED: Final = Refused(FailCode.INTERNAL, "the grammar of this request could not be applied")
SET_ASIDE: Final = Refused(FailCode.ADAPTER_UNAVAILABLE, "the adapter produced values that are not finite")


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is. Sequences: one per choice of a request."""

    running: int
    waiting: int
    tokens: int  # known and not computed


@dataclass(frozen=True, slots=True)
class _Flight:
    """A planned step, and its launch unless there was nothing to launch."""

    plan: Plan
    launch: Launch | None

    @property
    def is_progress(self) -> bool:
        return self.launch is not None or self.plan.num_preempted > 0


class EngineCore:
    def __init__(
        self,
        capacity: Capacity,
        scheduler: Scheduler,
        residency: Residency,
        grammars: Grammars,
        executor: Executor,
        clock: Callable[[], float],
        max_waiting: int,
        *,
        plan_ahead: bool,
        speculator: Speculator | None = None,
    ) -> None:
        """`speculator` is the scheduler's drafter, if it has one."""
        self.capacity = capacity
        self.scheduler = scheduler
        self.residency = residency
        self.grammars = grammars
        self.max_waiting = max_waiting
        self.draining = False
        self._executor = executor
        self._clock = clock
        self._plan_ahead = plan_ahead
        self._speculator = speculator
        self._live = LiveRequests(scheduler, residency, grammars, speculator)
        self._ahead: _Flight | None = None  # launched, and told what to draw
        self._progress = True

    # -- what gateways ask for ------------------------------------------------------------------------------------

    def submit(self, submit: Submit, route: bytes) -> None:
        """Accept a request or fail it. A second one with the id of a live one of this gateway is ignored."""
        key = RequestKey(route, submit.request_id)
        if key in self._live:
            log.warning("a second submit with the live request id %s is ignored", submit.request_id)
            return
        try:
            self._check_open()
            request = admit(submit, route, self._clock(), self.capacity)
            self.residency.want(request.adapters)
        except Refused as refusal:
            self._live.refuse(key, refusal)
        except AdapterUnavailable as error:
            self._live.refuse(key, Refused(FailCode.ADAPTER_UNAVAILABLE, error.message))
        else:
            self._live.add(request)
            self.scheduler.add(request)
            self._constrain(request, submit.grammar)

    def _constrain(self, request: Request, grammar: Grammar | None) -> None:
        try:
            self.grammars.want(request, grammar)
        except Refused as refusal:
            self._live.fail(request, refusal)

    def abort(self, route: bytes, request_id: str) -> None:
        """End a live request; nothing to do for any other."""
        request = self._live.get(RequestKey(route, request_id))
        if request is not None:
            self._live.abort(request)

    def abort_route(self, route: bytes) -> None:
        """End all requests of a gateway that has gone; nobody is told."""
        self._live.drop_route(route)

    def drain(self) -> None:
        """Take no more requests, and give those back that have not started; the gateway finds another engine."""
        self.draining = True
        refusal = Refused(FailCode.SHUTTING_DOWN, "the engine is shutting down", retryable=True)
        for request in self._live:
            if not any(sequence.admitted_before for sequence in request.sequences):
                self._live.fail(request, refusal)

    def abort_all(self) -> None:
        for request in self._live:
            self._live.abort(request)

    def close(self) -> None:
        """End all requests, and wait for what is launched."""
        self.abort_all()
        if self._ahead is not None:
            self._commit(self._ahead)
            self._ahead = None

    @property
    def idle(self) -> bool:
        """The last step had nothing to compute: nothing will change until a message or an adapter arrives."""
        return not self._progress

    @property
    def has_requests(self) -> bool:
        return len(self._live) > 0

    @property
    def load(self) -> Load:
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        return Load(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            tokens=sum(max(0, sequence.num_pending) for sequence in sequences),
        )

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self) -> dict[bytes, News]:
        """Commit one engine step: the one that was launched ahead, if there is one. The news, by gateway."""
        self._collect_adapters()
        self._collect_grammars()
        self._abort_overdue()
        flight, self._ahead = self._ahead, None
        if flight is None:
            flight = self._launch()
            self._draw(flight)
        ahead = self._launch() if self._may_go_ahead(flight) else None
        self._commit(flight)
        self._progress = flight.is_progress or (ahead is not None and ahead.is_progress)
        if ahead is not None:
            self._draw(ahead)
            if ahead.launch is None:
                self._commit(ahead)
            else:
                self._ahead = ahead
        return self._live.take_news()

    def _launch(self) -> _Flight:
        plan = self.scheduler.schedule(self._clock())
        flight = _Flight(plan, None if plan.is_empty else self._executor.launch(plan))
        for sequence in self._speculator.take_failed() if self._speculator is not None else ():
            if sequence.state is not SequenceState.FINISHED:
                self._live.fail(sequence.request, Refused(FailCode.INTERNAL, "no guess could be made for this request"))
        return flight

    def _may_go_ahead(self, flight: _Flight) -> bool:
        """Whether to launch the next step before this one's tokens are known: not when guesses want to know them."""
        if not self._plan_ahead or flight.launch is None:
            return False
        if self._speculator is None:
            return True
        chunks = flight.plan.chunks
        guessed = any(chunk.drafts for chunk in chunks)
        return not guessed and not self._speculator.pays([chunk.sequence for chunk in chunks if chunk.samples])

    def _draw(self, flight: _Flight) -> None:
        """Have the tokens of a launched step drawn. All before it is committed."""
        if flight.launch is None:
            return
        draws: list[Draw] = []
        for part in flight.launch.parts:
            sequence = part.chunk.sequence
            if sequence.state is SequenceState.FINISHED:
                continue
            try:
                draws.append(wanted(part, self.capacity.vocab_size))
            except Refused as refusal:
                self._live.fail(sequence.request, refusal)
            except Exception:  # whatever one grammar brings, the others are to be served
                log.exception("the grammar of request %s failed", sequence.request.key.request_id)
                self._live.fail(sequence.request, GRAMMAR_FAILED)
        self._executor.draw(flight.launch, draws)

    def _commit(self, flight: _Flight) -> None:
        if flight.launch is not None:
            results = self._executor.take(flight.launch)
            for result in results.chunks:
                self._take(result)
            self._observe(flight.plan, results)
        self.scheduler.retire(flight.plan)

    def _take(self, result: ChunkResult) -> None:
        sequence = result.chunk.sequence
        request = sequence.request
        if sequence.state is SequenceState.FINISHED:
            return  # aborted since, or another choice of its request has failed
        if result.failure is not None:
            self._fail(result.chunk, result.failure)
            return
        token_ids = self.scheduler.commit(result.chunk, [sampled.token_id for sampled in result.drawn])
        if not self._follows_grammar(sequence, token_ids):
            self._live.fail(request, GRAMMAR_FAILED)
            return
        if sequence.constraint is not None and sequence.constraint.is_terminated:
            sequence.finish_reason = FinishReason.STOP  # whatever min_tokens and ignore_eos say: nothing can follow
        if self._speculator is not None and token_ids:
            self._speculator.learn(sequence, len(token_ids), len(result.chunk.drafts))
        request.prompt_logprobs += result.prompt_logprobs
        prompt_only = request.max_new_tokens == 0 and sequence.num_computed == len(request.prompt)
        if prompt_only:
            sequence.finish_reason = FinishReason.LENGTH
        if token_ids or prompt_only:
            self._live.tell(sequence, result.drawn[: len(token_ids)])

    def _follows_grammar(self, sequence: Sequence, token_ids: Iterable[int]) -> bool:
        """Advance the sequence's grammar, if it has one, by new tokens. False: it failed, or does not allow them."""
        constraint = sequence.constraint
        try:
            return constraint is None or all(constraint.accept(token_id) for token_id in token_ids)
        except Exception:  # as above
            log.exception("the grammar of request %s failed", sequence.request.key.request_id)
            return False

    def _fail(self, chunk: Chunk, failure: Failure) -> None:
        """A step found this chunk's request at fault; values that are not finite are the adapter's, if just one has
        changed any of them. An activated one has not before its start."""
        request = chunk.sequence.request
        self._live.fail(request, Refused(failure.code, failure.message))
        suspects = [use.digest for use, start in request.activations if start < chunk.end]
        if failure.code is FailCode.NUMERICAL and len(suspects) == 1:
            log.error("adapter %s gave values that are not finite: set aside", suspects[0])
            self.residency.quarantine(suspects[0])
            for other in self._live.using({suspects[0]}):
                self._live.fail(other, SET_ASIDE)

    def _observe(self, plan: Plan, results: StepResults) -> None:
        """Tell the speculator what a step costs and brings."""
        num_drawn = sum(len(result.drawn) for result in results.chunks)
        if self._speculator is not None and num_drawn:
            self._speculator.cost.observe(sum(chunk.length for chunk in plan.chunks), num_drawn, results.seconds)

    # -- what happened since the last step ------------------------------------------------------------------------

    def _collect_adapters(self) -> None:
        for failure in self.residency.collect():
            log.warning("adapter %s: %s", ", ".join(failure.digests), failure.error.message)
            refusal = Refused(FailCode.ADAPTER_UNAVAILABLE, failure.error.message, retryable=failure.error.retryable)
            for request in self._live.using(failure.digests):
                self._live.fail(request, refusal)

    def _collect_grammars(self) -> None:
        for failure in self.grammars.collect():
            self._live.fail(failure.request, failure.refusal)

    def _abort_overdue(self) -> None:
        now = self._clock()
        for request in self._live:
            if request.deadline is not None and now >= request.deadline:
                self._live.abort(request)

    def _check_open(self) -> None:
        """Raises Refused when no request can be taken now."""
        if self.draining:
            raise Refused(FailCode.SHUTTING_DOWN, "the engine is shutting down", retryable=True)
        if len(self.scheduler.waiting) >= self.max_waiting:
            raise Refused(FailCode.OVERLOADED, "the engine's queue is full", retryable=True)
