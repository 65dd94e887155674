"""The engine's socket, on a thread of its own: gateways are heard and heartbeats sent while a step computes.

Two queues join it to the engine's thread: `inbox` carries what arrived, `send` what is to be told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import msgspec
import zmq

from tenora_engine.errors import StartError
from tenora_engine.wire import (
    GATEWAY_TIMEOUT_S,
    HEARTBEAT_S,
    Abort,
    FailCode,
    Failed,
    Goodbye,
    Hello,
    Status,
    Step,
    Submit,
    ToGateway,
    Usage,
    decode_to_engine,
    encode,
)

log = logging.getLogger(__name__)

_MAX_FRAME_BYTES: Final = 64 * 2**20
# A gateway that leaves so many messages unread is treated as one that has gone.
_MAX_UNREAD: Final = 10_000
# When the engine's thread has not moved for so long, say nothing: gateways then fail over.
_STALL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Submitted:
    route: bytes
    submit: Submit


@dataclass(frozen=True, slots=True)
class Aborted:
    route: bytes
    request_id: str


@dataclass(frozen=True, slots=True)
class GatewayGone:
    route: bytes


@dataclass(frozen=True, slots=True)
class AdapterReady:
    """An adapter has been loaded, or could not be: the core collects it in its next step."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """The process is asked to end."""


Event = Submitted | Aborted | GatewayGone | AdapterReady | Terminate


@dataclass(frozen=True, slots=True)
class _Parcel:
    frame: bytes
    route: bytes | None  # None: every gateway


class _Named(msgspec.Struct):
    """As much of a frame as is needed to answer one that cannot be read."""

    type: str = ""
    request_id: str = ""


class Link:
    """One ROUTER socket. `send` and `publish` are called from the engine's thread only."""

    def __init__(self, address: str, instance_id: str, inbox: SimpleQueue[Event], clock: Callable[[], float]) -> None:
        """Raises StartError when the address cannot be bound."""
        self._inbox = inbox
        self._clock = clock
        self._instance_id = instance_id
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a gateway that left is an error, not a silent loss
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # one that reconnects under its name replaces itself
        self._router.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        self._router.setsockopt(zmq.SNDHWM, _MAX_UNREAD)
        self._router.setsockopt(zmq.LINGER, 1000)
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise StartError(f"cannot listen on {address}: {error}") from error
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._outbox: SimpleQueue[_Parcel | None] = SimpleQueue()  # None: nothing will follow
        self._bell, self._bell_far = self._bell_pair()
        self._status: Status | None = None
        self._published_at = clock()
        self._seen: dict[bytes, float] = {}  # gateways by route: when last heard
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, route: bytes, message: ToGateway) -> None:
        self._outbox.put(_Parcel(encode(message), route))
        self._bell.send(b"")

    def announce(self, status: Status) -> None:
        """Tell every gateway now, rather than at the next heartbeat."""
        self.publish(status)
        self._outbox.put(_Parcel(encode(status), None))
        self._bell.send(b"")

    def publish(self, status: Status) -> None:
        """What to say in heartbeats from now on; calling it is the engine's own sign of life."""
        self._status = status
        self._published_at = self._clock()

    def close(self) -> None:
        """Send what is still to be sent, then close the socket."""
        self._outbox.put(None)
        self._bell.send(b"")
        self._thread.join()
        self._bell.close()
        self._context.term()

    def _bell_pair(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        near, far = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        far.bind("inproc://bell")
        near.connect("inproc://bell")
        return near, far

    # -- the link's own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._bell_far, zmq.POLLIN)
        next_beat = self._clock()
        try:
            while True:
                ready = dict(poller.poll(max(0, round((next_beat - self._clock()) * 1000))))
                if self._router in ready:
                    self._receive_all()
                if self._bell_far in ready and not self._send_all():
                    return
                now = self._clock()
                if now >= next_beat:
                    next_beat = now + HEARTBEAT_S
                    self._beat(now)
        finally:
            self._router.close()
            self._bell_far.close()

    def _receive_all(self) -> None:
        while True:
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2:
                self._receive(*parts)
            else:
                log.warning("a message of %d parts is ignored", len(parts))

    def _receive(self, route: bytes, frame: bytes) -> None:
        self._seen[route] = self._clock()
        try:
            message = decode_to_engine(frame)
        except msgspec.DecodeError as error:
            self._answer_unreadable(route, frame, error)
            return
        match message:
            case Submit():
                self._inbox.put(Submitted(route, message))
            case Abort(request_id):
                self._inbox.put(Aborted(route, request_id))
            case Hello():
                if self._status is not None:
                    self._transmit(route, encode(self._status))
            case Goodbye():
                self._lose(route)
            case _:
                pass  # Heartbeat: being heard is all that it is for

    def _answer_unreadable(self, route: bytes, frame: bytes, error: msgspec.DecodeError) -> None:
        """A submit that cannot be read still ends in one terminal event, if it says which request it is."""
        log.warning("a frame of %d bytes is not a message: %s", len(frame), error)
        try:
            named = msgspec.msgpack.decode(frame, type=_Named)
        except msgspec.DecodeError:
            return
        if named.type == "submit" and named.request_id:
            reason = f"the engine cannot read the request: {error}"
            failed = Failed(named.request_id, FailCode.INVALID, reason, False, Usage(0, 0, 0))
            self._transmit(route, encode(Step(self._instance_id, failures=[failed])))

    def _send_all(self) -> bool:
        """Send what is in the outbox. False: it was the last."""
        while self._bell_far.poll(0):
            self._bell_far.recv()
            item = self._outbox.get()
            if item is None:
                return False
            for route in list(self._seen) if item.route is None else [item.route]:
                self._transmit(route, item.frame)
        return True

    def _transmit(self, route: bytes, frame: bytes) -> None:
        try:
            self._router.send_multipart((route, frame), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("a gateway reads too slowly; its requests are aborted")
            self._lose(route)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lose(route)

    def _beat(self, now: float) -> None:
        for route in [route for route, seen in self._seen.items() if now - seen > GATEWAY_TIMEOUT_S]:
            log.warning("a gateway has been silent for %.0f s; its requests are aborted", GATEWAY_TIMEOUT_S)
            self._lose(route)
        if self._status is not None and now - self._published_at < _STALL_S:
            frame = encode(self._status)
            for route in list(self._seen):
                self._transmit(route, frame)

    def _lose(self, route: bytes) -> None:
        if self._seen.pop(route, None) is not None:
            self._inbox.put(GatewayGone(route))
