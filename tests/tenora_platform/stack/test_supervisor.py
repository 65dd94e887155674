"""The supervisor over small real processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tenora_platform.stack.home import Home
from tenora_platform.stack.part import Part, PartFailed
from tenora_platform.stack.state import (
    AlreadyRunning,
    PartState,
    PartStatus,
    StackState,
    end_leftovers,
    is_running,
    supervisor_lock,
    write_state,
)
from tenora_platform.stack.supervisor import Stage, Supervisor


def part(folder: Path, name: str, program: str, **options: object) -> Part:
    """A part that is ready once it has written the file `name`."""
    ready = folder / name
    code = f"import pathlib, time, subprocess, sys; ready = pathlib.Path({str(ready)!r})\n{program}"
    return Part(name, [sys.executable, "-c", code], folder / f"{name}.log", ready.exists, **options)  # type: ignore[arg-type]


RUN = "ready.touch(); time.sleep(60)"


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Supervisor], threading.Thread]]:
    """Runs a supervisor in a thread."""
    running: list[tuple[Supervisor, threading.Thread]] = []

    def start(supervisor: Supervisor) -> threading.Thread:
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        running.append((supervisor, thread))
        return thread

    yield start
    for supervisor, thread in running:
        supervisor.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_stages_start_in_order_and_stop_in_reverse(
    tmp_path: Path, run: Callable[[Supervisor], threading.Thread]
) -> None:
    order: list[str] = []
    first = part(tmp_path, "first", RUN)
    second = part(tmp_path, "second", RUN)
    stages = [
        Stage([first], before=lambda: order.append("before first")),
        Stage([second], before=lambda: order.append(f"before second, first ready: {first.ready()}")),
    ]
    supervisor = Supervisor(stages, lambda: None)
    thread = run(supervisor)
    until(lambda: supervisor.up)
    assert order == ["before first", "before second, first ready: True"]
    pids = [child.process.pid for child in supervisor.children if child.process]
    supervisor.stop()
    thread.join(20)
    assert [psutil.pid_exists(pid) for pid in pids] == [False, False]
    assert [child.state for child in supervisor.children] == [PartState.STOPPED] * 2


def test_a_killed_part_is_restarted_and_its_children_are_ended(
    tmp_path: Path, run: Callable[[Supervisor], threading.Thread]
) -> None:
    program = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid)); {RUN}"
    )
    supervisor = Supervisor([Stage([part(tmp_path, "one", program)])], lambda: None)
    run(supervisor)
    until(lambda: supervisor.up)
    (child,) = supervisor.children
    assert child.process is not None
    before, grandchild = child.process.pid, int((tmp_path / "child").read_text())
    os.kill(before, signal.SIGKILL)
    until(lambda: child.restarts == 1 and child.state is PartState.READY and child.process is not None)
    assert child.process.pid != before
    until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE)


def test_a_part_that_ends_at_its_first_start_is_an_error_and_the_rest_is_stopped(tmp_path: Path) -> None:
    good = part(tmp_path, "good", RUN)
    bad = part(tmp_path, "bad", "sys.exit(7)")
    supervisor = Supervisor([Stage([good, bad])], lambda: None)
    with pytest.raises(PartFailed, match=r"bad ended with status 7; its log: .*bad\.log"):
        supervisor.run()
    assert [child.process for child in supervisor.children] == [None, None]


def test_a_part_that_does_not_become_ready_is_an_error(tmp_path: Path) -> None:
    slow = part(tmp_path, "slow", "time.sleep(60)", start_timeout_s=0.3)
    with pytest.raises(PartFailed, match="was not ready"):
        Supervisor([Stage([slow])], lambda: None).run()


def test_a_question_that_fails_is_a_no(tmp_path: Path, run: Callable[[Supervisor], threading.Thread]) -> None:
    """A probe's library raises what it likes; the supervisor and the other parts go on."""
    asked: list[int] = []

    def ready() -> bool:
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionResetError("the server went away")
        return True

    one = dataclasses.replace(part(tmp_path, "one", RUN), ready=ready)
    supervisor = Supervisor([Stage([one])], lambda: None)
    run(supervisor)
    until(lambda: supervisor.up)
    (child,) = supervisor.children
    assert child.process is not None
    asked.clear()
    os.kill(child.process.pid, signal.SIGKILL)
    until(lambda: child.restarts == 1 and child.state is PartState.READY)
    assert len(asked) >= 3


def test_a_part_that_ignores_the_polite_signal_is_killed(
    tmp_path: Path, run: Callable[[Supervisor], threading.Thread]
) -> None:
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {RUN}"
    supervisor = Supervisor([Stage([part(tmp_path, "deaf", program, stop_timeout_s=0.2)])], lambda: None)
    thread = run(supervisor)
    until(lambda: supervisor.up)
    (child,) = supervisor.children
    assert child.process is not None
    pid = child.process.pid
    supervisor.stop()
    thread.join(10)
    assert not psutil.pid_exists(pid)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_one_data_folder_has_one_supervisor(home: Home) -> None:
    assert not is_running(home)
    with supervisor_lock(home):
        assert is_running(home)
        with pytest.raises(AlreadyRunning), supervisor_lock(home):
            pass
    assert not is_running(home)


def test_leftovers_are_ended_but_a_stranger_with_the_same_pid_is_not(home: Home, tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine = subprocess.Popen(sleep, start_new_session=True)
    stranger = subprocess.Popen(sleep, start_new_session=True)
    try:
        parts = [
            PartStatus("mine", PartState.READY, mine.pid, psutil.Process(mine.pid).create_time()),
            PartStatus("stranger", PartState.READY, stranger.pid, psutil.Process(stranger.pid).create_time() - 100),
        ]
        write_state(home, StackState("0", 1, {}, parts))
        assert end_leftovers(home) == ["mine"]
        assert mine.wait(5) is not None
        assert stranger.poll() is None
    finally:
        mine.kill()
        stranger.kill()
        mine.wait()
        stranger.wait()
