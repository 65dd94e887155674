"""The gateway's end of the wire to one engine: a ZeroMQ DEALER, the engine's status, and the requests it has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from tenora_engine.wire import (
    ENGINE_TIMEOUT_S,
    HEARTBEAT_S,
    Abort,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    Output,
    Status,
    Step,
    Submit,
    ToEngine,
    Usage,
    decode_to_gateway,
    encode,
)
from tenora_platform.gateway.routing import Replica
from tenora_platform.gateway.runs import Run

_GRACE_S: Final = 0.1  # lets messages that waited while this process was busy be read before an engine is given up
_log = logging.getLogger(__name__)


class EngineSilent(Exception):
    """Nothing was heard for ENGINE_TIMEOUT_S."""


class EngineLink:
    """Keeps one engine connected for as long as `run` runs. `status` is None while the engine is away."""

    def __init__(self, context: zmq.asyncio.Context, url: str, gateway_id: str, on_status: Callable[[], None]) -> None:
        self.url = url
        self.status: Status | None = None
        self._context = context
        self._gateway_id = gateway_id
        self._on_status = on_status
        self._socket: zmq.asyncio.Socket | None = None
        self._heard_at = time.monotonic()
        self._runs: dict[str, Run] = {}
        self._sent_since_status = 0  # tokens
        self._refused = False  # it said that it is full or leaving, in words that its last status does not show yet

    @property
    def replica(self) -> Replica | None:
        status = self.status
        if status is None:
            return None
        return Replica(
            engine_id=status.engine_id,
            base_fingerprint=status.base_fingerprint,
            load_tokens=status.load_tokens + self._sent_since_status,
            has_room=status.waiting < status.max_waiting and not self._refused,
            draining=status.draining,
            residency={adapter.digest: adapter.tier for adapter in status.adapters},
        )

    async def run(self) -> None:
        """Connect, and connect anew whenever the engine falls silent. Ends by cancellation."""
        while True:
            self._socket = self._connect()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._listen(self._socket))
                    tasks.create_task(self._keep_alive())
            except* EngineSilent:
                self._lose_all("the engine does not answer")
            except* zmq.ZMQError as failures:
                _log.error("%s: %s", self.url, failures.exceptions[0])
                self._lose_all("the connection failed")
                await asyncio.sleep(HEARTBEAT_S)
            finally:
                self._send(Goodbye(self._gateway_id))
                # Never linger on a dead engine: what still waits for it must not reach its successor.
                self._socket.close(linger=0 if self.status is None else 100)
                self._socket = None

    def submit(self, parts: Sequence[Submit], on_usage: Callable[[Usage], None]) -> Run:
        """Send the prompts of one request. The caller ends the run with `Run.end`."""
        run = Run(parts, self.abort, on_usage)
        for part in parts:
            self._runs[part.request_id] = run
        for part in parts:
            if not self._send(part):
                self._forget(run)
                run.lose("the engine is not connected")
                break
            self._sent_since_status += len(part.token_ids) + part.sampling.max_tokens * part.sampling.n
        return run

    def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    def mark_refusing(self) -> None:
        """Offer nothing more to this engine until its next status."""
        self._refused = True

    def _connect(self) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for an engine that is not there
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.SNDHWM, 10_000)
        socket.setsockopt(zmq.RCVHWM, 0)  # never make an engine wait: what waits is bounded per run
        socket.connect(self.url)
        return socket

    def _send(self, message: ToEngine) -> bool:
        """Hand a message to ZeroMQ; False when the engine is not connected. Never waits."""
        if self._socket is None:
            return False
        sent = asyncio.ensure_future(self._socket.send(encode(message), zmq.NOBLOCK))
        if not sent.done():  # ZeroMQ decides at once unless an earlier message still waits
            return True
        error = sent.exception()
        if error is not None and not isinstance(error, zmq.Again):
            _log.warning("cannot send to %s: %s", self.url, error)
        return error is None

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frame = await socket.recv()
            self._heard_at = time.monotonic()
            try:
                message = decode_to_gateway(frame)
            except msgspec.DecodeError as error:
                _log.error("%s sent what is no message of the wire: %s", self.url, error)
                continue
            match message:
                case Status():
                    self._take_status(message)
                case Step():
                    self._take_step(message)

    async def _keep_alive(self) -> None:
        self._heard_at = time.monotonic()
        while True:
            silent_s = time.monotonic() - self._heard_at
            introduce = self.status is None or silent_s > 2 * HEARTBEAT_S
            self._send(Hello(self._gateway_id) if introduce else Heartbeat(self._gateway_id))
            await asyncio.sleep(HEARTBEAT_S if self.status is not None else HEARTBEAT_S / 5)
            if self.status is not None and time.monotonic() - self._heard_at > ENGINE_TIMEOUT_S:
                await asyncio.sleep(_GRACE_S)
                if time.monotonic() - self._heard_at > ENGINE_TIMEOUT_S:
                    raise EngineSilent

    def _take_status(self, status: Status) -> None:
        if self.status is not None and status.instance_id != self.status.instance_id:
            self._lose_all("the engine was restarted")
        self.status = status
        self._sent_since_status = 0
        self._refused = False
        self._on_status()

    def _take_step(self, step: Step) -> None:
        for output in step.outputs:
            self._take_output(output)
        for failure in step.failures:
            self._take_failure(failure)

    def _take_output(self, output: Output) -> None:
        run = self._runs.get(output.request_id)
        if run is not None and run.deliver(output):
            del self._runs[output.request_id]

    def _take_failure(self, failure: Failed) -> None:
        run = self._runs.pop(failure.request_id, None)
        if run is not None:
            run.fail(failure)

    def _forget(self, run: Run) -> None:
        for request_id in run.request_ids:
            self._runs.pop(request_id, None)

    def _lose_all(self, reason: str) -> None:
        """Every running request ends here. One that did reach a restarted engine is aborted there."""
        runs, self._runs = self._runs, {}
        self.status = None
        for request_id, run in runs.items():
            self.abort(request_id)
            run.lose(reason)
        if runs:
            _log.error("%s: %s; %d requests lost", self.url, reason, len(runs))
