"""All the engines a gateway knows: pick one, run a request on it, and again on another while nothing came out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import redis.asyncio
import redis.exceptions
import zmq.asyncio

from tenora_engine.wire import FailCode, Status, Submit, Usage
from tenora_platform.engine_status import STATUS_TTL_S, encode_status, status_key
from tenora_platform.gateway import routing
from tenora_platform.gateway.background import run_in_background
from tenora_platform.gateway.errors import Overloaded, Unavailable
from tenora_platform.gateway.link import EngineLink
from tenora_platform.gateway.runs import EngineFailed, EngineLost, Run

_PUBLISH_S: Final = 1.0
_MAX_REFUSALS: Final = 3  # tries of one request on engines that answer "not now"
_REFUSAL_PAUSE_S: Final = 0.25
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """A run whose first output is there, and what its engine said of itself when it was picked."""

    run: Run
    status: Status


@dataclass(frozen=True)
class Picked:
    link: EngineLink
    status: Status


class Engines:
    """`start` connects to every engine, `stop` leaves them. `submit` is the one thing a request needs."""

    def __init__(self, urls: Sequence[str], gateway_id: str, max_pending_s: float, cache: redis.asyncio.Redis) -> None:
        self._context = zmq.asyncio.Context()
        self._links = [EngineLink(self._context, url, gateway_id, self._wake_waiting) for url in urls]
        self._max_pending_s = max_pending_s
        self._cache = cache
        self._news = asyncio.Event()  # set and replaced at every status: wakes all who wait for an engine
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [run_in_background(link.run(), f"link to {link.url}") for link in self._links]
        self._tasks.append(run_in_background(self._publish(), "publisher of engine status"))

    @property
    def alive(self) -> bool:
        """Whether everything that must run, runs."""
        return not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=100)

    @property
    def statuses(self) -> list[Status]:
        """What the engines that are there last said of themselves."""
        return [link.status for link in self._links if link.status is not None]

    def status_of(self, base_fingerprint: str) -> Status | None:
        """An engine that serves this base; None while there is none."""
        return next((status for status in self.statuses if status.base_fingerprint == base_fingerprint), None)

    async def submit(self, parts: Sequence[Submit], on_usage: Callable[[Usage], None]) -> Started:
        """Run `parts` (the prompts of one request) on the best engine, and return once its first output is there.

        An engine that is lost, or refuses for now, before that is replaced by another, or by its own successor.
        Raises Unavailable, Overloaded, EngineFailed.
        """
        give_up_at = asyncio.get_running_loop().time() + self._max_pending_s
        attempts = refusals = 0
        while True:
            attempts += 1
            picked = await self._pick(parts[0], give_up_at)
            run = picked.link.submit(_attempt(parts, attempts), on_usage)
            try:
                await run.started()
                return Started(run=run, status=picked.status)
            except EngineLost:
                continue
            except EngineFailed as failure:
                await run.end()
                refusals += 1
                if not failure.retryable or refusals == _MAX_REFUSALS:
                    raise
                if failure.code in (FailCode.OVERLOADED, FailCode.SHUTTING_DOWN):
                    picked.link.mark_refusing()
                await asyncio.sleep(_REFUSAL_PAUSE_S)
            except asyncio.CancelledError:
                await run.end()
                raise

    async def _pick(self, submit: Submit, give_up_at: float) -> Picked:
        """Waits for an engine to be there, and to have room, until `give_up_at`. Raises Unavailable, Overloaded."""
        base_fingerprint, adapters = submit.base_fingerprint, [use.digest for use in submit.adapters]
        while True:
            replicas = {link.url: replica for link in self._links if (replica := link.replica) is not None}
            chosen = routing.choose(replicas.values(), base_fingerprint, adapters)
            for link in self._links:
                if chosen is not None and link.status is not None and replicas.get(link.url) is chosen:
                    return Picked(link, link.status)
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._news.wait()
            except TimeoutError:
                if any(replica.base_fingerprint == base_fingerprint for replica in replicas.values()):
                    raise Overloaded("Every engine is busy. Try again shortly.", retry_after_s=1.0) from None
                raise Unavailable("No engine serves this model now. Try again shortly.", retry_after_s=2.0) from None

    def _wake_waiting(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _publish(self) -> None:
        """For the control plane to show (`engine_status`)."""
        while True:
            try:
                for status in self.statuses:
                    await self._cache.set(status_key(status.engine_id), encode_status(status), ex=STATUS_TTL_S)
            except redis.exceptions.RedisError as error:
                _log.warning("cannot publish the engines' status: %s", error)
            await asyncio.sleep(_PUBLISH_S)


def _attempt(parts: Sequence[Submit], number: int) -> list[Submit]:
    """The same requests under ids of their own, so that late news of an earlier attempt is nobody's."""
    return [msgspec.structs.replace(part, request_id=f"{part.request_id}-{number}") for part in parts]
