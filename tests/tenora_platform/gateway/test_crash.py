"""BILL-02: a gateway process that is killed with -9, and the one after it, against the engine's own count."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gateway_under_test import Database, Served
from scripted_engine import Script, ScriptedEngine

from tenora_platform.settings import Settings

ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PROMPT_TOKENS = 21
_PROGRAM = """
import socket, uvicorn
from tenora_platform.gateway.app import create_app
from tenora_platform.gateway.server import uvicorn_options
from tenora_platform.settings import Settings
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(create_app(Settings()), **uvicorn_options(), log_level="error")).run([server])
"""


class GatewayProcess:
    def __init__(self, settings: Settings) -> None:
        values = settings.model_dump(include={"database_url", "redis_url", "engines", "spool_dir"})
        environment = {f"TENORA_{name.upper()}": str(value) for name, value in values.items()}
        environment["TENORA_SECRET"] = settings.secret.get_secret_value()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, env={**os.environ, **environment}
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def process(gateway_settings: Settings) -> Iterator[GatewayProcess]:
    process = GatewayProcess(gateway_settings)
    yield process
    process.kill()


def ask(process: GatewayProcess, key: str, until: int | None) -> list[str]:
    """Stream, and kill the gateway after `until` chunks; the events that came. None: to the end."""
    received: list[str] = []
    headers = {"authorization": f"Bearer {key}"}
    with (
        contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
        httpx.Client(timeout=30) as client,
        client.stream("POST", f"{process.url}/v1/chat/completions", json=ASK, headers=headers) as answer,
    ):
        for line in answer.iter_lines():
            received += [line] if line else []
            if len(received) == until:
                process.kill()
    return received


def test_before_the_first_token(
    process: GatewayProcess,
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    database: Database,
    engine: ScriptedEngine,
) -> None:
    tenant = database.tenant()
    engine.scripts = [Script(pause_after=0)]
    with ThreadPoolExecutor(1) as executor:
        asked = executor.submit(ask, process, tenant.key, None)
        engine.wait_for(lambda: len(engine.submits) == 1)
        process.kill()
        assert asked.result(30) == []
    start_gateway(gateway_settings)
    (row,) = tenant.wait_for_usage()
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("recovered", 0, 0)


def test_in_the_middle(
    process: GatewayProcess,
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    database: Database,
    engine: ScriptedEngine,
) -> None:
    """At most the tokens of the last flush are lost: the prompt, noted with the first output, is not."""
    tenant = database.tenant()
    engine.scripts = [Script(pieces=(b"Hello",) * 5, pause_after=3)]
    assert len(ask(process, tenant.key, until=3)) == 3
    start_gateway(gateway_settings)
    (row,) = tenant.wait_for_usage()
    (produced,) = engine.produced.values()
    assert (row.outcome, row.prompt_tokens) == ("recovered", PROMPT_TOKENS)
    assert 1 <= row.completion_tokens <= produced == 3


def test_after_the_end(
    process: GatewayProcess,
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    database: Database,
    engine: ScriptedEngine,
) -> None:
    """The settlement was on disk before the last chunk, wherever the event was on its way to Postgres."""
    tenant = database.tenant()
    engine.default = Script(pieces=(b"Hello",) * 5)
    assert ask(process, tenant.key, until=6)[-1] == "data: [DONE]"
    start_gateway(gateway_settings)
    (row,) = tenant.wait_for_usage()
    assert (row.outcome, row.completion_tokens) == ("completed", 5)
