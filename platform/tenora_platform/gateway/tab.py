"""What one request owes: its usage event in the journal and its reservation against the quotas, settled together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from tenora_engine.wire import Usage
from tenora_platform.gateway.errors import Unavailable
from tenora_platform.gateway.limits.limiter import Limiter, Reservation
from tenora_platform.gateway.limits.policy import NOTHING, Cost
from tenora_platform.usage.event import Outcome, UsageEvent
from tenora_platform.usage.spool import Spool, SpoolError
from tenora_platform.usage.spool_file import Progress


@dataclass(frozen=True)
class Charged:
    """Tokens, as the client sees them and as they are billed."""

    prompt: int
    cached: int
    completion: int


class Tab:
    """Opened before an engine gets the request, closed exactly once. `note` keeps it current in between."""

    def __init__(self, event: UsageEvent, reservation: Reservation, spool: Spool, limiter: Limiter) -> None:
        self._event = event
        self._reservation = reservation
        self._spool = spool
        self._limiter = limiter
        self.closed = False
        self.usage = Usage(0, 0, 0)

    async def open(self) -> None:
        """Raises Unavailable when the journal cannot be written: what cannot be billed is not begun."""
        try:
            await self._spool.intend(self._event)
        except SpoolError as error:
            raise Unavailable("Usage cannot be recorded now.", retry_after_s=5.0) from error

    def note(self, usage: Usage) -> None:
        """What the engine says that this has used so far."""
        if self.closed:
            return
        self.usage = usage
        self._spool.progress(
            Progress(self._event.event_id, usage.prompt, usage.cached, usage.completion, datetime.now(UTC))
        )

    async def close(self, outcome: Outcome, completion_tokens: int) -> Charged:
        """Settle. Raises Unavailable when the journal cannot be written; it then still holds the last counts."""
        self.closed = True
        charged = Charged(self.usage.prompt, self.usage.cached, completion_tokens)
        event = msgspec.structs.replace(
            self._event,
            prompt_tokens=charged.prompt,
            cached_tokens=charged.cached,
            completion_tokens=charged.completion,
            outcome=outcome,
            finished_at=max(self._event.started_at, datetime.now(UTC)),
        )
        actual = Cost(requests=1, tokens=charged.prompt + charged.completion)
        await self._settle(actual, self._spool.settle(event))
        return charged

    async def cancel(self) -> None:
        """No engine accepted it: it costs nothing and leaves no event."""
        self.closed = True
        await self._settle(NOTHING, self._spool.discard(self._event.event_id))

    async def _settle(self, actual: Cost, record: Awaitable[None]) -> None:
        """Both books at once: neither waits for the other."""
        quota = asyncio.create_task(self._limiter.settle(self._reservation, actual))
        try:
            await record
        except SpoolError as error:
            raise Unavailable("Usage cannot be recorded now.", retry_after_s=5.0) from error
        finally:
            await quota
