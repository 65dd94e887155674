"""One client request on one engine: where its outputs wait until the client takes them.

    RunEnded
    +-- EngineLost      the engine fell silent or came back as another process
    +-- EngineFailed    the engine said so; carries its code
    +-- ClientTooSlow   more waits than may wait for one request

An engine cannot be told to pause, so what a slow client leaves lying is bounded here: beyond MAX_WAITING_UNITS
the request is aborted. Nothing of this touches other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tenora_engine.wire import FailCode, Failed, Output, Submit, Usage

MAX_WAITING_UNITS: Final = 65_536  # a unit is a token, or one log-probability that goes with it
# What an engine says of a request that it never began: whatever else it says of it, it cost nothing.
REFUSALS: Final = frozenset({FailCode.INVALID, FailCode.BASE_MISMATCH, FailCode.OVERLOADED, FailCode.SHUTTING_DOWN})
_END_WAIT_S: Final = 2.0  # how long an aborted request's exact usage is waited for


class RunEnded(Exception):
    """The request will give no more output."""


class EngineLost(RunEnded):
    """Nothing was heard of the engine that had the request, or it restarted."""


class EngineFailed(RunEnded):
    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.code: FailCode = failure.code
        self.message = failure.message
        self.retryable = failure.retryable


class ClientTooSlow(RunEnded):
    """The client did not take its tokens."""


@dataclass(frozen=True)
class PartOutput:
    """`output` of the prompt number `part` of a request."""

    part: int
    output: Output


class Run:
    """Outputs in the order in which they came. `usage` is the sum over the request's prompts, always up to date."""

    def __init__(
        self, parts: Sequence[Submit], abort_one: Callable[[str], None], on_usage: Callable[[Usage], None]
    ) -> None:
        self._parts = {submit.request_id: index for index, submit in enumerate(parts)}
        self._live = set(self._parts)
        self._abort_one = abort_one
        self._on_usage = on_usage
        self._usages = {request_id: Usage(0, 0, 0) for request_id in self._parts}
        self._waiting: list[PartOutput] = []
        self._waiting_units = 0
        self._error: RunEnded | None = None
        self._news = asyncio.Event()

    @property
    def request_ids(self) -> frozenset[str]:
        return frozenset(self._parts)

    @property
    def usage(self) -> Usage:
        total = self._usages.values()
        return Usage(sum(u.prompt for u in total), sum(u.cached for u in total), sum(u.completion for u in total))

    async def started(self) -> None:
        """Return once the first output is there. Raises RunEnded."""
        await self._news.wait()
        if not self._waiting and self._error is not None:
            raise self._error

    async def outputs(self) -> AsyncIterator[PartOutput]:
        """Until every prompt has ended. Raises RunEnded after the outputs that came before it."""
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._waiting, self._waiting_units = self._waiting, [], 0
            for part_output in batch:
                yield part_output
            if self._waiting:
                continue
            if self._error is not None:
                raise self._error
            if not self._live:
                return

    def abort(self) -> None:
        """Tell the engine that nothing more is wanted. What is finished already is not concerned."""
        for request_id in self._live:
            self._abort_one(request_id)

    def left(self) -> list[PartOutput]:
        """What came and was not taken."""
        left, self._waiting = self._waiting, []
        return left

    async def end(self) -> None:
        """Abort what still runs and wait, briefly, until the engine has said what it cost. Raises nothing."""
        self.abort()
        try:
            async with asyncio.timeout(_END_WAIT_S):
                while self._live:
                    await self._news.wait()
                    self._news.clear()
        except TimeoutError:
            self._live.clear()

    # What the engine's link calls.

    def deliver(self, output: Output) -> bool:
        """Take one output; whether it ended its part."""
        self._account(output.request_id, output.usage)
        if output.final:
            self._live.discard(output.request_id)
        if self._error is None:
            self._waiting.append(PartOutput(self._parts[output.request_id], output))
            self._waiting_units += _units(output)
            if self._waiting_units > MAX_WAITING_UNITS:
                self._error = ClientTooSlow("the client does not read")
                self.abort()
        self._news.set()
        return output.final

    def fail(self, failure: Failed) -> None:
        if failure.code not in REFUSALS:
            self._account(failure.request_id, failure.usage)
        self._live.discard(failure.request_id)
        self._error = self._error or EngineFailed(failure)
        self._news.set()

    def lose(self, reason: str) -> None:
        self._live.clear()
        self._error = self._error or EngineLost(reason)
        self._news.set()

    def _account(self, request_id: str, usage: Usage) -> None:
        self._usages[request_id] = usage
        self._on_usage(self.usage)


def _units(output: Output) -> int:
    alternatives = sum(len(token.top) for token in output.logprobs or ())
    return 1 + len(output.token_ids) + alternatives
