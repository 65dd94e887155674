"""Flow 1, a generation: from the body of an authenticated request to the last token, and what it cost.

`Generations.run` is the whole of it, top to bottom. (Whose key it is was settled before the body was taken in, in
`routes`.) What it yields is worded by an endpoint's voice and sent by
`delivery`; when the client goes away the generator is closed, and its `finally` ends the engine's work and settles.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from tenora_adapters.token_bytes import TokenBytes
from tenora_engine.wire import GRAMMAR_REFUSED, AdapterUse, FailCode, FinishReason, Submit
from tenora_platform.gateway.answer import Answer, Piece
from tenora_platform.gateway.catalog import Base, Principal
from tenora_platform.gateway.directory import Composed, Directory
from tenora_platform.gateway.engines import Engines
from tenora_platform.gateway.errors import (
    ContextTooLong,
    GatewayError,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from tenora_platform.gateway.limits.limiter import Limiter, limits_of
from tenora_platform.gateway.plan import Plan, make_plan
from tenora_platform.gateway.requests import GenerationRequest, parse
from tenora_platform.gateway.runs import REFUSALS, ClientTooSlow, EngineFailed, Run, RunEnded
from tenora_platform.gateway.salt import cache_salt
from tenora_platform.gateway.tab import Charged, Tab
from tenora_platform.gateway.tokenizer import TextTooLong, Tokenizer, TokenizerError, Tokenizers
from tenora_platform.gateway.wording import Heading, Voice, fingerprint
from tenora_platform.usage.event import Outcome, UsageEvent
from tenora_platform.usage.spool import Spool

_log = logging.getLogger(__name__)


class Endpoint(Protocol):
    name: str
    id_prefix: str
    prompt_param: str

    @property
    def request(self) -> type[GenerationRequest]: ...

    async def tokenize(self, asked: Any, tokenizer: Tokenizer, context_length: int) -> list[list[int]]: ...

    def voice(
        self, asked: Any, heading: Heading, prompts: Sequence[Sequence[int]], token_bytes: TokenBytes
    ) -> Voice: ...


@dataclass(frozen=True)
class Opened:
    """The first output is there: from here on the status is 200."""

    voice: Voice
    stream: bool
    include_usage: bool
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Closed:
    """The answer is complete and what it cost is on disk."""

    charged: Charged


Event = Opened | Piece | Closed


@dataclass(frozen=True)
class Generations:
    directory: Directory
    tokenizers: Tokenizers
    limiter: Limiter
    spool: Spool
    engines: Engines
    secret: bytes

    async def run(self, principal: Principal, body: bytes, endpoint: Endpoint) -> AsyncGenerator[Event, None]:
        """Yields Opened, Pieces, Closed. Raises GatewayError."""
        started_at, event_id = datetime.now(UTC), uuid4()
        asked = parse(endpoint.request, body)
        composed = await self.directory.compose(principal, asked.model, asked.adapters or (), asked.user)
        tokenizer = await self._tokenizer(composed)
        context_length = self._context_length(composed.base)
        prompts = await _tokenize(endpoint, asked, tokenizer, context_length)
        plan = make_plan(asked, prompts, tokenizer, vocab_size=composed.base.vocab_size, context_length=context_length)
        reservation = await self.limiter.reserve(event_id, limits_of(principal), plan.cost)

        intent = _intent(event_id, endpoint, principal, composed, started_at)
        tab = Tab(intent, reservation, self.spool, self.limiter)
        answer = Answer(plan, tokenizer.token_bytes, asked.stops)
        run: Run | None = None
        outcome, accepted = Outcome.ABORTED, False
        try:
            await tab.open()
            begun = await self.engines.submit(self._submits(event_id, composed, plan, principal), tab.note)
            run = begun.run
            heading = _heading(intent, asked, composed, begun.status.build)
            yield Opened(
                voice=endpoint.voice(asked, heading, plan.prompts, tokenizer.token_bytes),
                stream=bool(asked.stream),
                include_usage=asked.include_usage,
                headers={"x-request-id": intent.request_id, **reservation.decision.headers()},
            )
            last: Piece | None = None
            async for received in run.outputs():
                if received.output.finish_reason is FinishReason.ABORT:
                    raise GenerationFailed("The engine gave this request up.")
                last = answer.push(received.part, received.output)
                if answer.complete:
                    break
                if last is not None:
                    yield last
            else:
                raise GenerationFailed("The engine ended without an end to every choice.")
            run.abort()  # after a stop string the engine may still be at it
            charged = await tab.close(Outcome.COMPLETED, answer.num_billed(tab.usage.completion))
            if last is not None:
                yield last
            yield Closed(charged)
        except (RunEnded, GatewayError) as error:
            outcome = Outcome.ABORTED if isinstance(error, ClientTooSlow) else Outcome.FAILED
            accepted = isinstance(error, EngineFailed) and error.code not in REFUSALS
            raise _told(error, plan) from error
        finally:
            if not tab.closed:
                if run is not None:
                    await run.end()
                    for received in run.left():
                        answer.push(received.part, received.output)
                await self._settle(tab, outcome, answer, accepted=accepted)

    async def _settle(self, tab: Tab, outcome: Outcome, answer: Answer, *, accepted: bool) -> None:
        """Settle what did not come to its end. Whoever waits for the answer has been told already."""
        try:
            if accepted or tab.usage.prompt or tab.usage.completion:
                await tab.close(outcome, answer.num_billed(tab.usage.completion))
            else:
                await tab.cancel()
        except Unavailable:
            _log.critical("a request could not be settled; its journal entry holds the last counts")

    async def _tokenizer(self, composed: Composed) -> Tokenizer:
        try:
            return await self.tokenizers.of(composed.base.folder)
        except TokenizerError as error:
            _log.error("%s", error)
            raise Unavailable("This model cannot be served now.", retry_after_s=30.0) from error

    def _context_length(self, base: Base) -> int:
        """The model's, or less where the engine has room for less."""
        status = self.engines.status_of(base.fingerprint)
        return base.context_length if status is None else min(base.context_length, status.max_model_len)

    def _submits(self, event_id: UUID, composed: Composed, plan: Plan, principal: Principal) -> list[Submit]:
        return [
            Submit(
                request_id=f"{event_id.hex}-{part}",
                token_ids=list(prompt),
                sampling=plan.sampling,
                tenant=str(principal.tenant_id),
                cache_salt=cache_salt(self.secret, principal.tenant_id),
                base_fingerprint=composed.base.fingerprint,
                adapters=tuple(AdapterUse(used.version.digest, used.scale) for used in composed.adapters),
                grammar=None if plan.structure is None else plan.structure.grammar,
            )
            for part, prompt in enumerate(plan.prompts)
        ]


async def _tokenize(endpoint: Endpoint, asked: Any, tokenizer: Tokenizer, context_length: int) -> list[list[int]]:
    try:
        return await endpoint.tokenize(asked, tokenizer, context_length)
    except TextTooLong as error:
        raise ContextTooLong(
            f"This model's context holds {context_length} tokens; your prompt is longer.", param=endpoint.prompt_param
        ) from error


def _intent(
    event_id: UUID, endpoint: Endpoint, principal: Principal, composed: Composed, started_at: datetime
) -> UsageEvent:
    """What is billed if this process dies before it says more."""
    return UsageEvent(
        event_id=event_id,
        request_id=endpoint.id_prefix + event_id.hex,
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        base_model=composed.base.name,
        adapter=composed.adapter,
        version_digest=composed.digest,
        endpoint=endpoint.name,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        outcome=Outcome.RECOVERED,
        started_at=started_at,
        finished_at=started_at,
    )


def _heading(intent: UsageEvent, asked: GenerationRequest, composed: Composed, build: str) -> Heading:
    return Heading(
        id=intent.request_id,
        created=int(intent.started_at.timestamp()),
        model=asked.model,
        system_fingerprint=fingerprint(composed.base.fingerprint, composed.digest, build),
        include_usage=asked.include_usage,
    )


def _told(error: RunEnded | GatewayError, plan: Plan) -> GatewayError:
    """What the client is told."""
    match error:
        case GatewayError():
            return error
        case EngineFailed(code=FailCode.INVALID):
            if plan.structure is not None and error.message.startswith(GRAMMAR_REFUSED):
                return InvalidRequest(error.message, param=plan.structure.param, code="invalid_value")
            return InvalidRequest(error.message)
        case EngineFailed(code=FailCode.OVERLOADED):
            return Overloaded("The engine is busy. Try again shortly.", retry_after_s=1.0)
        case EngineFailed(code=FailCode.NUMERICAL | FailCode.INTERNAL):
            return GenerationFailed(error.message, code=error.code)
        case EngineFailed():
            return Unavailable(error.message, code=error.code, retry_after_s=2.0)
        case ClientTooSlow():
            return GenerationFailed("The answer was not read fast enough.", code="client_too_slow")
        case _:
            return Unavailable("The engine was lost. Try again.", code="engine_lost", retry_after_s=1.0)
