"""A part of the embedded stack: a child process that can be started, asked whether it is ready, and stopped.

StackError
+-- PartFailed    a part ended, or never became ready; `log` says where to look
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

log = logging.getLogger(__name__)


class StackError(Exception):
    """The embedded stack cannot go on. The message is for the person at the terminal."""


class PartFailed(StackError):
    def __init__(self, name: str, reason: str, log: Path) -> None:
        super().__init__(f"{name} {reason}; its log: {log}")
        self.log = log


@dataclass(frozen=True)
class Part:
    """How to run one part. `ready` is asked until it says yes; it must not block for more than a second or so."""

    name: str
    command: list[str]
    log: Path
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None  # started as this user; only root can
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 15.0


class RunningPart:
    """A started part. It leads a process group of its own, so that a Ctrl-C at the terminal does not reach it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        part.log.parent.mkdir(parents=True, exist_ok=True)
        with part.log.open("ab") as log:
            self.process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **part.env},
                cwd="/",
                start_new_session=True,
                user=part.user,
                group=part.user,
                extra_groups=[] if part.user else None,
            )
        self.create_time: float = psutil.Process(self.process.pid).create_time()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def exited(self) -> bool:
        return self.process.poll() is not None

    def is_ready(self) -> bool:
        """Whether the part says so. A question that fails is a no: asking must never end who watches over it."""
        try:
            return self.part.ready()
        except Exception:  # whatever a library raises when its server is away
            log.exception("asking %s whether it is ready failed", self.part.name)
            return False

    def wait_ready(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Return once the part is ready. Raises PartFailed; gives up early when `stopping()`."""
        deadline = time.monotonic() + self.part.start_timeout_s
        while not self.is_ready():
            if self.exited():
                raise PartFailed(self.part.name, f"ended with status {self.process.returncode}", self.part.log)
            if stopping():
                return
            if time.monotonic() > deadline:
                raise PartFailed(self.part.name, f"was not ready in {self.part.start_timeout_s:.0f} s", self.part.log)
            time.sleep(0.05)

    def stop(self) -> None:
        """End the part: politely, then by force, with whatever it left in its process group."""
        if not self.exited():
            self.process.send_signal(self.part.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(self.part.stop_timeout_s)
        kill_group(self.pid)
        self.process.wait()


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads or led; nothing happens when it is empty."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


@contextmanager
def running(part: Part) -> Iterator[RunningPart]:
    """Run one part for the length of a `with` block: for tests and tools."""
    process = RunningPart(part)
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()
