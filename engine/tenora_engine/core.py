"""The engine core: schedule, run, update. One step at a time, on one thread; knows no socket."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tenora_engine.admission import Capacity, admit
from tenora_engine.errors import AdapterUnavailable, Refused
from tenora_engine.lora.residency import Residency
from tenora_engine.request import Request, RequestKey, Sequence, SequenceState
from tenora_engine.runner import ChunkResult, Failure
from tenora_engine.scheduler import Chunk, Plan, Scheduler
from tenora_engine.wire import FailCode, Failed, FinishReason, Output, Submit, TokenLogprob, Usage

log = logging.getLogger(__name__)


class Executor(Protocol):
    """What runs a plan: `tenora_engine.runner.Runner`."""

    def run(self, plan: Plan) -> list[ChunkResult]: ...


@dataclass(slots=True)
class News:
    """What there is to tell one gateway after a step."""

    outputs: list[Output] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is. Sequences: one per choice of a request."""

    running: int
    waiting: int
    tokens: int  # known and not computed


class EngineCore:
    def __init__(
        self,
        capacity: Capacity,
        scheduler: Scheduler,
        residency: Residency,
        executor: Executor,
        clock: Callable[[], float],
        max_waiting: int,
    ) -> None:
        self.capacity = capacity
        self.scheduler = scheduler
        self.residency = residency
        self.max_waiting = max_waiting
        self.draining = False
        self._executor = executor
        self._clock = clock
        self._live: dict[RequestKey, Request] = {}
        self._news: defaultdict[bytes, News] = defaultdict(News)
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
            self._refuse(key, refusal)
        except AdapterUnavailable as error:
            self._refuse(key, Refused(FailCode.ADAPTER_UNAVAILABLE, error.message))
        else:
            self._live[key] = request
            self.scheduler.add(request)

    def abort(self, route: bytes, request_id: str) -> None:
        """End a live request; nothing to do for any other."""
        request = self._live.get(RequestKey(route, request_id))
        if request is not None:
            self._abort(request)

    def abort_route(self, route: bytes) -> None:
        """End all requests of a gateway that has gone; nobody is told."""
        for request in [request for key, request in self._live.items() if key.route == route]:
            self._end(request)
        self._news.pop(route, None)

    def drain(self) -> None:
        """Take no more requests, and give those back that have not started; the gateway finds another engine."""
        self.draining = True
        refusal = Refused(FailCode.SHUTTING_DOWN, "the engine is shutting down", retryable=True)
        for request in list(self._live.values()):
            if not any(sequence.admitted_before for sequence in request.sequences):
                self._fail(request, refusal)

    def abort_all(self) -> None:
        for request in list(self._live.values()):
            self._abort(request)

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self) -> dict[bytes, News]:
        """One engine step: schedule, run, update. The news since the last one, by gateway."""
        self._collect_adapters()
        self._abort_overdue()
        plan = self.scheduler.schedule(self._clock())
        self._update(self._run(plan))
        self.scheduler.retire(plan)
        self._progress = bool(plan.chunks) or plan.num_preempted > 0
        news, self._news = self._news, defaultdict(News)
        return news

    @property
    def idle(self) -> bool:
        """The last step had nothing to compute: nothing will change until a message or an adapter arrives."""
        return not self._progress

    @property
    def has_requests(self) -> bool:
        return bool(self._live)

    @property
    def load(self) -> Load:
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        return Load(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            tokens=sum(sequence.num_pending for sequence in sequences),
        )

    def _run(self, plan: Plan) -> list[ChunkResult]:
        if plan.is_empty:
            return []
        try:
            return self._executor.run(plan)
        except Exception:  # whatever one chunk brings, the others are to be served
            log.exception("a step of %d chunks failed; trying them one by one", len(plan.chunks))
        return [self._run_alone(chunk, plan.number) for chunk in plan.chunks]

    def _run_alone(self, chunk: Chunk, number: int) -> ChunkResult:
        """Computing a chunk again changes nothing: its keys and values are written to the same places."""
        try:
            (result,) = self._executor.run(Plan(number, (chunk,)))
        except Exception:  # the one at fault
            log.exception("request %s could not be computed", chunk.sequence.request.key.request_id)
            return ChunkResult(chunk, failure=Failure(FailCode.INTERNAL, "the engine failed to compute this request"))
        return result

    def _update(self, results: Iterable[ChunkResult]) -> None:
        for result in results:
            sequence = result.chunk.sequence
            if sequence.state is SequenceState.FINISHED:
                continue  # another choice of the request failed in this very step
            if result.failure is not None:
                self._fail_step(sequence.request, result.failure)
                continue
            drawn = [] if result.sampled is None else [result.sampled.token_id]
            self._advance(sequence, result, self.scheduler.commit(result.chunk, drawn))

    def _advance(self, sequence: Sequence, result: ChunkResult, token_ids: list[int]) -> None:
        request = sequence.request
        request.prompt_logprobs += result.prompt_logprobs
        prompt_only = request.max_new_tokens == 0 and sequence.num_pending == 0
        if result.sampled is None and not prompt_only:
            return
        first = sequence.num_generated == len(token_ids)
        logprobs: list[TokenLogprob] | None = None
        if result.sampled is not None:
            logprobs = None if result.sampled.logprob is None else [result.sampled.logprob]
        else:
            sequence.finish_reason = FinishReason.LENGTH
        if sequence.finish_reason is not None:
            self.scheduler.finish(sequence)
        with_prompt = first and sequence.choice == 0 and request.sampling.prompt_logprobs is not None
        self._news[request.key.route].outputs.append(
            Output(
                request_id=request.key.request_id,
                choice=sequence.choice,
                token_ids=token_ids,
                usage=request.usage,
                finish_reason=sequence.finish_reason,
                final=request.finished,
                logprobs=logprobs,
                prompt_logprobs=request.prompt_logprobs if with_prompt else None,
            )
        )
        if request.finished:
            self._end(request)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _collect_adapters(self) -> None:
        for failure in self.residency.collect():
            log.warning("adapter %s: %s", failure.digest, failure.error.message)
            refusal = Refused(FailCode.ADAPTER_UNAVAILABLE, failure.error.message, retryable=failure.error.retryable)
            for request in list(self._live.values()):
                if any(use.digest == failure.digest for use in request.adapters):
                    self._fail(request, refusal)

    def _abort_overdue(self) -> None:
        now = self._clock()
        for request in list(self._live.values()):
            if request.deadline is not None and now >= request.deadline:
                self._abort(request)

    def _fail_step(self, request: Request, failure: Failure) -> None:
        if failure.code is FailCode.NUMERICAL and len(request.adapters) == 1:
            log.error("adapter %s gave values that are not finite: set aside", request.adapters[0].digest)
            self.residency.quarantine(request.adapters[0].digest)
        self._fail(request, Refused(failure.code, failure.message))

    def _refuse(self, key: RequestKey, refusal: Refused) -> None:
        nothing = Usage(prompt=0, cached=0, completion=0)
        failed = Failed(key.request_id, refusal.code, refusal.message, refusal.retryable, nothing)
        self._news[key.route].failures.append(failed)

    def _fail(self, request: Request, refusal: Refused) -> None:
        failed = Failed(request.key.request_id, refusal.code, refusal.message, refusal.retryable, request.usage)
        self._news[request.key.route].failures.append(failed)
        self._end(request)

    def _abort(self, request: Request) -> None:
        """End the choices that still run; the last of them carries the request's terminal event."""
        open_choices = [choice for choice in request.sequences if choice.state is not SequenceState.FINISHED]
        for sequence in open_choices:
            self.scheduler.finish(sequence)
            self._news[request.key.route].outputs.append(
                Output(
                    request_id=request.key.request_id,
                    choice=sequence.choice,
                    token_ids=[],
                    usage=request.usage,
                    finish_reason=FinishReason.ABORT,
                    final=request.finished,
                )
            )
        self._end(request)

    def _end(self, request: Request) -> None:
        """Forget a request and free all that it holds."""
        for sequence in request.sequences:
            self.scheduler.finish(sequence)
        self.residency.unwant(request.adapters)
        del self._live[request.key]

    def _check_open(self) -> None:
        """Raises Refused when no request can be taken now."""
        if self.draining:
            raise Refused(FailCode.SHUTTING_DOWN, "the engine is shutting down", retryable=True)
        if len(self.scheduler.waiting) >= self.max_waiting:
            raise Refused(FailCode.OVERLOADED, "the engine's queue is full", retryable=True)
