"""`tenora up`, `status` and `down` as a person meets them, the awkward moments too."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import RunningPlatform


@pytest.fixture
def own(make_platform: Callable[[], RunningPlatform]) -> Iterator[RunningPlatform]:
    """A platform of this test's own, down at the end whatever happened."""
    platform = make_platform()
    yield platform
    platform.tenora("down", check=False)


def processes_of(platform: RunningPlatform) -> list[str]:
    """Command lines of whatever runs with this data folder in its environment or arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == psutil.Process().pid or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ().get("TENORA_HOME")
            command = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if environment == str(platform.home) or str(platform.home) in command:
            found.append(command)
    return found


def test_up_status_second_up_and_down(own: RunningPlatform) -> None:
    assert own.tenora("status", check=False).returncode == 3

    first = own.tenora("up", "--detach")
    assert own.url in first.stdout
    status = own.status()
    assert {part["name"]: part["state"] for part in status["parts"]} == dict.fromkeys(
        ("postgres", "valkey", "engine", "worker", "web"), "ready"
    )
    assert status["home"] == str(own.home)
    assert set(status["urls"]) == {"api", "control", "web"}

    second = own.tenora("up", "--detach")
    assert "up already" in second.stdout

    mode = (own.home / "secrets.json").stat().st_mode
    assert mode & 0o077 == 0
    secrets = json.loads((own.home / "secrets.json").read_text())
    logs = own.logs()
    assert [name for name, value in secrets.items() if value in logs] == []

    own.tenora("down")
    assert processes_of(own) == []
    assert "Nothing runs" in own.tenora("down").stdout


def test_data_survive_a_killed_supervisor_and_a_restart(own: RunningPlatform) -> None:
    own.tenora("up", "--detach")
    tenant = own.new_tenant()
    supervisor = json.loads((own.home / "run" / "state.json").read_text())["pid"]
    psutil.Process(supervisor).kill()
    psutil.wait_procs([psutil.Process(supervisor)] if psutil.pid_exists(supervisor) else [], timeout=5)
    assert processes_of(own) != [], "its parts live on"

    own.tenora("up", "--detach")
    names = [row["name"] for row in json.loads(own.tenora("tenant", "list", "--json").stdout)]
    assert tenant.name in names
    own.tenora("down")
    assert processes_of(own) == []


def test_a_port_in_use_is_said_and_nothing_is_left_behind(own: RunningPlatform) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own.port))
        taken.listen()
        result = own.tenora("up", "--detach", check=False)
    assert result.returncode == 1
    assert f"port {own.port}" in result.stderr
    assert "--port" in result.stderr
    assert processes_of(own) == []


def test_commands_say_that_nothing_runs(own: RunningPlatform) -> None:
    result = own.tenora("tenant", "list", check=False)
    assert result.returncode == 1
    assert "tenora up" in result.stderr
    assert "Traceback" not in result.stderr
