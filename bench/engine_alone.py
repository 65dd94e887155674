"""An engine without a platform in front: a client of its wire that is measured as clients of the API are."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress

import zmq
import zmq.asyncio

from tenora_engine.wire import (
    HEARTBEAT_S,
    Abort,
    AdapterUse,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    Output,
    Sampling,
    Status,
    Step,
    Submit,
    ToEngine,
    decode_to_gateway,
    encode,
)
from tenora_platform.bench.record import Failure, Record, Usage
from tenora_platform.bench.workload import Call

PATIENCE_S = 60.0


class EngineClient:
    """A gateway without tenants, texts, quotas or books. A call's model is the digest of an adapter, or `base`.

    Use as an asynchronous context manager. Prompts must be token ids.
    """

    def __init__(self, address: str, base: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = f"bench-{os.getpid()}"
        self._base = base
        self._clock = clock
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self._status: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._running: dict[str, tuple[Record, asyncio.Future[None]]] = {}
        self._num_sent = 0

    async def __aenter__(self) -> EngineClient:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._keep_alive())]
        await self._send(Hello(self._name))
        async with asyncio.timeout(PATIENCE_S):
            await self._status
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._send(Goodbye(self._name))
        for task in self._tasks:
            task.cancel()
        self._socket.close(linger=1000)
        self._context.term()

    async def send(self, call: Call, record: Record) -> None:
        assert not isinstance(call.prompt, str), "the engine takes token ids"
        self._num_sent += 1
        request_id = f"{self._name}-{self._num_sent}"
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[request_id] = (record, ended)
        await self._send(
            Submit(
                request_id=request_id,
                token_ids=call.prompt,
                sampling=Sampling(
                    max_tokens=call.output_tokens, min_tokens=call.output_tokens, ignore_eos=True, temperature=0.0
                ),
                tenant=call.tenant,
                cache_salt=call.tenant.encode(),
                base_fingerprint=self._status.result().base_fingerprint,
                adapters=() if call.model == self._base else (AdapterUse(call.model),),
            )
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ended
        except TimeoutError:
            record.failure = Failure("timeout", f"no end within {PATIENCE_S:g} s")
        finally:
            if self._running.pop(request_id, None) is not None:  # given up before its end
                with suppress(zmq.ZMQError):
                    await self._send(Abort(request_id))

    async def _send(self, message: ToEngine) -> None:
        await self._socket.send(encode(message))

    async def _listen(self) -> None:
        while True:
            message = decode_to_gateway(await self._socket.recv())
            now = self._clock()
            if isinstance(message, Status):
                if not self._status.done():
                    self._status.set_result(message)
                continue
            self._take(message, now)

    def _take(self, step: Step, now: float) -> None:
        for output in step.outputs:
            if output.request_id in self._running:
                self._take_output(output, now)
        for failure in step.failures:
            if failure.request_id in self._running:
                self._take_failure(failure)

    def _take_output(self, output: Output, now: float) -> None:
        record, ended = self._running[output.request_id]
        if output.token_ids:
            record.chunks.append(now)
            record.ended = now
        record.usage = Usage(output.usage.prompt, output.usage.completion, output.usage.cached)
        if output.final:
            del self._running[output.request_id]
            if not ended.done():
                ended.set_result(None)

    def _take_failure(self, failure: Failed) -> None:
        record, ended = self._running.pop(failure.request_id)
        record.failure = Failure(failure.code, failure.message)
        if not ended.done():
            ended.set_result(None)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._send(Heartbeat(self._name))
