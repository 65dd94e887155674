"""What a running supervisor says of itself, in `run/state.json`; its lock, not its pid, proves that it runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

from tenora_platform.stack.home import Home, write_private
from tenora_platform.stack.part import StackError, kill_group


class PartState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


class PartStatus(msgspec.Struct, frozen=True):
    name: str
    state: PartState
    pid: int | None = None
    create_time: float | None = None  # tells a part from a stranger that got its pid later
    restarts: int = 0


class Progress(msgspec.Struct, frozen=True):
    """Of something that takes longer than a second."""

    what: str
    done: int
    total: int


class StackState(msgspec.Struct, frozen=True):
    version: str
    pid: int
    urls: dict[str, str]
    parts: list[PartStatus]
    up: bool = False  # every part was ready at least once
    error: str | None = None  # why it gave up
    progress: Progress | None = None


class AlreadyRunning(StackError):
    """Another supervisor holds this data folder."""


def read_state(home: Home) -> StackState | None:
    """The last state written, by a supervisor that may be gone; None when there is none."""
    try:
        return msgspec.json.decode(_file(home).read_bytes(), type=StackState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write_state(home: Home, state: StackState) -> None:
    write_private(_file(home), msgspec.json.encode(state))


def forget_state(home: Home) -> None:
    _file(home).unlink(missing_ok=True)


def _file(home: Home) -> Path:
    return home.run / "state.json"


@contextmanager
def supervisor_lock(home: Home) -> Iterator[None]:
    """Hold the data folder. Raises AlreadyRunning. The kernel lets go of it however the process ends."""
    descriptor = _open_lock(home)
    try:
        if not _lock(descriptor):
            raise AlreadyRunning(f"a platform already runs from {home.root}")
        yield
    finally:
        os.close(descriptor)


def is_running(home: Home) -> bool:
    """Whether a supervisor holds the data folder."""
    if not (home.run / "lock").exists():
        return False
    try:
        with supervisor_lock(home):
            return False
    except AlreadyRunning:
        return True


def end_leftovers(home: Home) -> list[str]:
    """End the parts that a killed supervisor left behind; their names. Call with the lock held."""
    state = read_state(home)
    ended = []
    for part in state.parts if state else []:
        if part.pid is not None and _is_same_process(part.pid, part.create_time):
            process = psutil.Process(part.pid)
            process.terminate()
            try:
                process.wait(15)
            except psutil.TimeoutExpired:
                process.kill()
            kill_group(part.pid)
            ended.append(part.name)
    return ended


def _is_same_process(pid: int, create_time: float | None) -> bool:
    try:
        return bool(psutil.Process(pid).create_time() == create_time)
    except psutil.NoSuchProcess:
        return False


def _lock(descriptor: int) -> bool:
    """Take the lock; a second try forgives somebody who only asked `is_running` at this moment."""
    for last in (False, True):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not last:
                time.sleep(0.05)
        else:
            return True
    return False


def _open_lock(home: Home) -> int:
    return os.open(home.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
