"""The whole platform, started as a person starts it, once for all flow tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import OpenAI

from tenora_platform.cli.client import ControlClient
from tenora_platform.stack.embedded import EMBEDDED_MODEL
from tenora_platform.stack.ports import free_port


@dataclass(frozen=True)
class Tenant:
    name: str
    id: str
    key: str


@dataclass
class RunningPlatform:
    """A platform with its own data folder and port."""

    home: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)

    def tenora(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the `tenora` command against this platform."""
        environment = {**os.environ, "TENORA_HOME": str(self.home), "TENORA_PORT": str(self.port), **self.environment}
        command = [sys.executable, "-m", "tenora_platform.cli.main", *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
        if check and result.returncode != 0:
            raise AssertionError(
                f"tenora {' '.join(arguments)} failed:\n{result.stdout}\n{result.stderr}\n{self.logs()}"
            )
        return result

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_user(self) -> str:
        return "admin"

    @property
    def admin_password(self) -> str:
        return str(json.loads((self.home / "secrets.json").read_text())["admin_password"])

    def control(self) -> ControlClient:
        return ControlClient(self.url, self.admin_user, self.admin_password)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.tenora("status", "--json").stdout))

    def part(self, name: str) -> psutil.Process:
        pids = {part["name"]: part["pid"] for part in self.status()["parts"]}
        return psutil.Process(pids[name])

    def logs(self) -> str:
        tails = [
            f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted((self.home / "logs").glob("*.log"))
        ]
        return "\n".join(tails)

    def until(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        """Wait for what must come true; the logs say more when it does not."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def new_tenant(self, **quota: int) -> Tenant:
        """A tenant of its own, with one key, so that tests do not meet."""
        name = f"t-{uuid.uuid4().hex[:10]}"
        with self.control() as control:
            row = control.post("/tenants", json={"name": name, "display_name": name, "timezone": "UTC"})
            if quota:
                limits = {"requests_per_minute": None, "tokens_per_minute": None, **quota}
                control.put(f"/tenants/{row['id']}/quota", json=limits)
            key = control.post(f"/tenants/{row['id']}/keys", json={"name": "test"})
        return Tenant(name, row["id"], key["key"])

    def openai(self, tenant: Tenant) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=tenant.key, max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def examples(repository: Path) -> Path:
    return repository / "examples" / "adapters"


@pytest.fixture(scope="session")
def make_platform(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], RunningPlatform]:
    """Describes a platform on a free port with the prepared model; starting it is the test's business."""

    def make() -> RunningPlatform:
        home = tmp_path_factory.mktemp("home", numbered=True)
        model = {"TENORA_MODEL": str(model_folder), "TENORA_MODEL_ACCEPTS": EMBEDDED_MODEL}
        return RunningPlatform(home, free_port(), model)

    return make


@pytest.fixture(scope="session")
def platform(make_platform: Callable[[], RunningPlatform]) -> Iterator[RunningPlatform]:
    """A running platform, shared by the flow tests; each makes its own tenants."""
    running = make_platform()
    running.tenora("up", "--detach")
    yield running
    running.tenora("down")
