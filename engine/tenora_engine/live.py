"""The requests under way, and what their gateways are to be told: exactly one end for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from tenora_engine.errors import Refused
from tenora_engine.grammar.grammars import Grammars
from tenora_engine.lora.residency import Residency
from tenora_engine.request import Request, RequestKey, Sequence, SequenceState
from tenora_engine.sampler import Sampled
from tenora_engine.scheduler import Scheduler
from tenora_engine.speculation import Speculator
from tenora_engine.wire import Failed, FinishReason, Output, Usage


@dataclass(slots=True)
class News:
    """What there is to tell one gateway after a step."""

    outputs: list[Output] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)


class LiveRequests:
    """A request is live from `add` to the method that ends it; then all that it held is free."""

    def __init__(
        self, scheduler: Scheduler, residency: Residency, grammars: Grammars, speculator: Speculator | None
    ) -> None:
        self._scheduler = scheduler
        self._residency = residency
        self._grammars = grammars
        self._speculator = speculator
        self._requests: dict[RequestKey, Request] = {}
        self._news: defaultdict[bytes, News] = defaultdict(News)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._requests

    def __iter__(self) -> Iterator[Request]:
        """As they are now: they may end meanwhile."""
        return iter(list(self._requests.values()))

    def get(self, key: RequestKey) -> Request | None:
        return self._requests.get(key)

    def using(self, digests: Set[str]) -> list[Request]:
        """Those that use all of these adapters."""
        return [request for request in self if digests <= {use.digest for use in request.adapters}]

    def take_news(self) -> dict[bytes, News]:
        """By gateway, since the last call."""
        news, self._news = self._news, defaultdict(News)
        return news

    def add(self, request: Request) -> None:
        self._requests[request.key] = request

    def tell(self, sequence: Sequence, sampled: Many[Sampled]) -> None:
        """A choice has new tokens, or has reached its end; with the last choice the request ends."""
        request = sequence.request
        if sequence.finish_reason is not None:
            self._scheduler.finish(sequence)
        first = sequence.choice == 0 and sequence.num_generated == len(sampled)
        with_prompt = first and request.sampling.prompt_logprobs is not None
        logprobs = [token.logprob for token in sampled if token.logprob is not None]
        self._news[request.key.route].outputs.append(
            Output(
                request_id=request.key.request_id,
                choice=sequence.choice,
                token_ids=[token.token_id for token in sampled],
                usage=request.usage,
                finish_reason=sequence.finish_reason,
                final=request.finished,
                logprobs=logprobs or None,
                prompt_logprobs=request.prompt_logprobs if with_prompt else None,
            )
        )
        if request.finished:
            self._end(request)

    def refuse(self, key: RequestKey, refusal: Refused) -> None:
        """A request that never became live."""
        nothing = Usage(prompt=0, cached=0, completion=0)
        failed = Failed(key.request_id, refusal.code, refusal.message, refusal.retryable, nothing)
        self._news[key.route].failures.append(failed)

    def fail(self, request: Request, refusal: Refused) -> None:
        failed = Failed(request.key.request_id, refusal.code, refusal.message, refusal.retryable, request.usage)
        self._news[request.key.route].failures.append(failed)
        self._end(request)

    def abort(self, request: Request) -> None:
        """End the choices that still run; the last of them carries the request's terminal event."""
        open_choices = [choice for choice in request.sequences if choice.state is not SequenceState.FINISHED]
        for sequence in open_choices:
            self._scheduler.finish(sequence)
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

    def drop_route(self, route: bytes) -> None:
        """End all requests of a gateway that has gone; nobody is told."""
        for request in self:
            if request.key.route == route:
                self._end(request)
        self._news.pop(route, None)

    def _end(self, request: Request) -> None:
        for sequence in request.sequences:
            self._scheduler.finish(sequence)
            if self._speculator is not None:
                self._speculator.forget(sequence)
        self._residency.unwant(request.adapters)
        self._residency.metrics.ended(request.adapters, request.usage)
        self._grammars.forget(request)
        del self._requests[request.key]
