"""An engine process, and gateways that speak the wire to it over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from engine_under_test import Answer

from tenora_engine.wire import (
    AdapterUse,
    Goodbye,
    Heartbeat,
    Hello,
    Sampling,
    Status,
    Step,
    Submit,
    ToEngine,
    decode_to_gateway,
    encode,
)

PATIENCE_S = 120.0


class EngineProcess:
    """`python -m tenora_engine serve` on a socket file in `folder`."""

    def __init__(self, model: Path, blobs: Path, folder: Path, *options: str) -> None:
        self.address = f"ipc://{folder}/engine.sock"
        self._log = (folder / "engine.log").open("wb")
        self.log = folder / "engine.log"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tenora_engine", "serve"),
                *("--listen", self.address, "--model", str(model), "--blobs", f"file://{blobs}"),
                *("--engine-id", "under-test", "--threads", "1", "--dtype", "fp32", "--kv-blocks", "64"),
                *options,
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


@dataclass
class GatewayDouble:
    """A DEALER socket and what it was told. It sends heartbeats only when a test does."""

    address: str
    name: str = field(default_factory=lambda: os.urandom(4).hex())
    answers: dict[str, Answer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None

    def __post_init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self.address)

    def hello(self) -> Status:
        """Greet until the engine is up and answers."""
        self.send(Hello(self.name))
        self.pump(lambda: self.status is not None)
        assert self.status is not None
        return self.status

    def send(self, message: ToEngine) -> None:
        self.send_raw(encode(message))

    def send_raw(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def submit(self, request_id: str, prompt: list[int], *, adapter: str | None = None, **options: Any) -> None:
        assert self.status is not None
        envelope = {key: options.pop(key) for key in ("deadline_s",) if key in options}
        self.answers[request_id] = Answer()
        self.send(
            Submit(
                request_id=request_id,
                token_ids=prompt,
                sampling=Sampling(**({"temperature": 0.0} | options)),
                tenant="tenant",
                cache_salt=b"salt",
                base_fingerprint=self.status.base_fingerprint,
                adapters=() if adapter is None else (AdapterUse(adapter),),
                **envelope,
            )
        )

    def pump(self, until: Callable[[], object]) -> None:
        """Take messages until a condition holds, and stay alive to the engine meanwhile."""
        give_up = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < give_up, "the engine did not answer in time"
            if self._socket.poll(200):
                self._take(decode_to_gateway(self._socket.recv()))
            else:
                self.send(Heartbeat(self.name))

    def take_backlog(self) -> None:
        """Take what has arrived, without a word to the engine."""
        while self._socket.poll(0):
            self._take(decode_to_gateway(self._socket.recv()))

    def result(self, request_id: str) -> Answer:
        """A request's answer, when it has ended."""
        self.pump(lambda: self.answers[request_id].num_terminal)
        return self.answers[request_id]

    def quiet_status(self) -> Status:
        """The next status that says that nothing is running."""
        self.status = None
        self.pump(lambda: self.status is not None and not (self.status.running or self.status.waiting))
        assert self.status is not None
        return self.status

    def close(self, *, goodbye: bool = True) -> None:
        if goodbye:
            self.send(Goodbye(self.name))
        self._socket.close(linger=1000 if goodbye else 0)
        self._context.term()

    def _take(self, message: Step | Status) -> None:
        if isinstance(message, Status):
            self.status = message
            return
        self.steps.append(message)
        for event in [*message.outputs, *message.failures]:
            self.answers.setdefault(event.request_id, Answer()).take(event)
