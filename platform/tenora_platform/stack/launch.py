"""`tenora up`: run the supervisor here, or in the background, and say what happens."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from tenora_platform.settings import Settings, settings
from tenora_platform.stack.embedded import Embedded
from tenora_platform.stack.home import Home
from tenora_platform.stack.part import StackError
from tenora_platform.stack.state import (
    PartStatus,
    Progress,
    StackState,
    end_leftovers,
    forget_state,
    is_running,
    read_state,
    supervisor_lock,
    write_state,
)
from tenora_platform.stack.supervisor import Supervisor

_DOWN_TIMEOUT_S = 90.0


def open_home(config: Settings) -> Home:
    return Home(config.home.expanduser().resolve())


def run_supervisor(config: Settings, on_state: Callable[[StackState], None] = lambda _: None) -> None:
    """Run the platform in this process until it is told to stop. Raises StackError when it cannot start."""
    home = open_home(config)
    home.prepare()
    with supervisor_lock(home):
        version = importlib.metadata.version("tenora")
        progress: Progress | None = None
        error: str | None = None
        supervisor: Supervisor | None = None
        urls: dict[str, str] = {}

        def publish() -> None:
            children = supervisor.children if supervisor else []
            parts = [
                PartStatus(
                    name=child.part.name,
                    state=child.state,
                    pid=child.process.pid if child.process else None,
                    create_time=child.process.create_time if child.process else None,
                    restarts=child.restarts,
                )
                for child in children
            ]
            up = supervisor.up if supervisor else False
            state = StackState(version, os.getpid(), urls, parts, up=up, error=error, progress=progress)
            write_state(home, state)
            on_state(state)

        def on_progress(what: str, done: int, total: int) -> None:
            nonlocal progress
            progress = Progress(what, done, total) if done < total else None
            publish()

        try:
            end_leftovers(home)
            embedded = Embedded(home, config, on_progress)
            urls = embedded.urls
            embedded.check()
            supervisor = Supervisor(embedded.stages(), publish)
            publish()
            with _on_signals(supervisor.stop):
                supervisor.run()
        except StackError as failure:
            error = str(failure)
            publish()
            raise


def start_detached(config: Settings) -> Iterator[StackState]:
    """Start a supervisor in the background; yields its states until it is up. Raises StackError when it fails."""
    home = open_home(config)
    home.prepare()
    log = home.logs / "supervisor.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenora_platform.stack.launch"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            env={
                **os.environ,
                "TENORA_HOME": str(home.root),
                "TENORA_HOST": config.host,
                "TENORA_PORT": str(config.port),
                **({} if config.model is None else {"TENORA_MODEL": str(config.model.expanduser().absolute())}),
            },
        )
    last: StackState | None = None
    while True:
        ended = process.poll() is not None
        state = read_state(home)
        if state is not None and state.pid == process.pid and state != last:
            last = state
            yield state
            if state.up:
                return
        if ended:
            reason = last.error if last is not None and last.error else f"see {log}"
            raise StackError(f"the platform did not start: {reason}")
        time.sleep(0.05)


def stop(home: Home) -> bool:
    """End a running platform with all its parts, or what a killed one left behind; False when there was nothing."""
    if not home.run.is_dir():
        return False
    state = read_state(home)
    was_running = is_running(home)
    if was_running and state is not None:
        _end_supervisor(state.pid)
    with supervisor_lock(home):
        leftovers = end_leftovers(home)
        forget_state(home)
    return was_running or bool(leftovers)


def _end_supervisor(pid: int) -> None:
    """Its lock is free a moment before its process has ended: the process is what to wait for."""
    with suppress(psutil.NoSuchProcess):
        supervisor = psutil.Process(pid)
        supervisor.terminate()
        deadline = time.monotonic() + _DOWN_TIMEOUT_S
        while supervisor.is_running() and supervisor.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                raise StackError(f"the supervisor (pid {pid}) did not end in {_DOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT call `stop` instead of ending the process."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def main() -> int:
    """The background process of `tenora up --detach`. What went wrong stands in the state file."""
    try:
        run_supervisor(settings())
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
