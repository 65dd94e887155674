"""Starts the parts in order, keeps them running, and stops them in reverse order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tenora_platform.stack.part import Part, PartFailed, RunningPart
from tenora_platform.stack.state import PartState

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
_CALM_S: Final = 60.0  # a part that ran this long starts over with the first pause


@dataclass(frozen=True)
class Stage:
    """Parts that can start together, once `before` has returned and all earlier stages are ready."""

    parts: Sequence[Part]
    before: Callable[[], None] = lambda: None


@dataclass
class Child:
    """One part and what became of it."""

    part: Part
    state: PartState = PartState.PENDING
    process: RunningPart | None = None
    restarts: int = 0
    started_at: float = 0.0
    retry_at: float = 0.0
    pause_s: float = field(default=_FIRST_PAUSE_S)


class Supervisor:
    """`run()` returns after `stop()` was called, from a signal handler or another thread, with every part ended."""

    def __init__(self, stages: Sequence[Stage], on_change: Callable[[], None]) -> None:
        self.stages = stages
        self.children = [Child(part) for stage in stages for part in stage.parts]
        self.up = False
        self._on_change = on_change
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Raises PartFailed or StackError when the first start fails. Later deaths only lead to restarts."""
        try:
            self._start_all()
            while not self._stopping.wait(0.1):
                self._tend()
        finally:
            self._stop_all()

    def _start_all(self) -> None:
        children = iter(self.children)
        for stage in self.stages:
            stage.before()
            started = [next(children) for _ in stage.parts]
            for child in started:
                self._start(child)
            for child in started:
                assert child.process is not None
                try:
                    child.process.wait_ready(self._stopping.is_set)
                except PartFailed:
                    self._set(child, PartState.FAILED)
                    raise
                if self._stopping.is_set():
                    return
                self._set(child, PartState.READY)
        self.up = True
        self._on_change()

    def _tend(self) -> None:
        """Restart what ended, and notice what became ready again. Never blocks on one part."""
        now = time.monotonic()
        for child in self.children:
            if child.process is not None and child.process.exited():
                child.process.stop()  # what it left in its process group
                child.process = None
                if now - child.started_at > _CALM_S:
                    child.pause_s = _FIRST_PAUSE_S
                child.retry_at = now + child.pause_s
                child.pause_s = min(child.pause_s * 2, _LONGEST_PAUSE_S)
                self._set(child, PartState.RESTARTING)
            if child.process is None and now >= child.retry_at:
                child.restarts += 1
                self._start(child, PartState.RESTARTING)
            elif child.state is PartState.RESTARTING and child.process is not None and child.process.is_ready():
                self._set(child, PartState.READY)

    def _start(self, child: Child, state: PartState = PartState.STARTING) -> None:
        child.process = RunningPart(child.part)
        child.started_at = time.monotonic()
        self._set(child, state)

    def _stop_all(self) -> None:
        for child in reversed(self.children):
            if child.process is not None:
                child.process.stop()
                child.process = None
                if child.state is not PartState.FAILED:
                    self._set(child, PartState.STOPPED)

    def _set(self, child: Child, state: PartState) -> None:
        child.state = state
        self._on_change()
