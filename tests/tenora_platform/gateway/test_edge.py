"""What reaches the gateway over HTTP before it is a request: heads, bodies, keys in the wrong place, logs."""

from __future__ import annotations

import base64
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from gateway_under_test import Served, TenantOfTest

from tenora_platform.gateway.server import KEEP_ALIVE_S, Redact, uvicorn_options

ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
OPENAI_CLIENT_IDLE_S = 5.0  # httpx' default for pooled connections


def raw(gateway: Served, data: bytes) -> bytes:
    """What the server answers to these bytes before it closes, or falls silent."""
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        received = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionError):
            pass
        return received


@pytest.fixture
def probed(gateway: Served) -> Iterator[list[float]]:
    """When `/healthz` answered while a test attacked."""
    times: list[float] = []
    stop = threading.Event()

    def probe() -> None:
        with httpx.Client() as client:
            while not times or not stop.is_set():
                assert client.get(f"{gateway.url}/healthz", timeout=10).status_code == 200
                times.append(time.monotonic())

    thread = threading.Thread(target=probe)
    thread.start()
    yield times
    stop.set()
    thread.join()
    assert times


@pytest.mark.parametrize(
    "head",
    [
        b"X-Large: " + b"a" * 1_000_000 + b"\r\n",
        b"".join(b"X-%d: 1\r\n" % number for number in range(10_000)),
        b"X-Endless: " + b"a" * 2_000_000,
    ],
)
def test_large_heads_are_refused(gateway: Served, probed: list[float], head: bytes) -> None:
    """API-23"""
    answer = raw(gateway, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")  # a reset may overtake the answer
    assert b"request_headers_too_large" in answer or answer == b""


def test_a_head_just_too_large_is_told(gateway: Served) -> None:
    """API-23"""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 65_536 + b"\r\n\r\n"
    assert raw(gateway, head).startswith(b"HTTP/1.1 431 ")
    many = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: 1\r\n" * 300 + b"\r\n"
    assert raw(gateway, many).startswith(b"HTTP/1.1 431 ")
    fine = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * 30_000 + b"\r\n\r\n"
    assert raw(gateway, fine).startswith(b"HTTP/1.1 200 ")


def test_heads_are_bounded_for_every_request_of_a_connection(gateway: Served) -> None:
    small = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 30_000 + b"\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert raw(gateway, small * 4 + last).count(b"HTTP/1.1 200 ") == 5


def test_large_bodies_are_refused(gateway: Served, tenant: TenantOfTest, probed: list[float]) -> None:
    """API-23: told by the length that the head declares, or when it grows past the bound."""
    large = b'{"model": "' + b"a" * 300_000
    answer = gateway.post(tenant.key, "chat/completions", large)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"a" * 10_000

    headers = {"authorization": f"Bearer {tenant.key}"}
    streamed = httpx.post(f"{gateway.url}/v1/chat/completions", content=chunks(), headers=headers)
    assert streamed.status_code == 413


def test_deep_nesting_and_long_texts_hold_nobody_up(gateway: Served, tenant: TenantOfTest, probed: list[float]) -> None:
    """API-23"""
    assert gateway.post(tenant.key, "chat/completions", b'{"model": ' + b"[" * 100_000).status_code == 400
    body = {"model": "toy", "prompt": "a " * 90_000}
    assert gateway.post(tenant.key, "completions", body).json()["error"]["code"] == "context_length_exceeded"


def test_every_refusal_has_openais_shape(gateway: Served, tenant: TenantOfTest) -> None:
    answers = [
        gateway.post(tenant.key, "chat/completions", b"{"),
        gateway.post(tenant.key, "nothing/here", {}),
        gateway.get(tenant.key, "chat/completions"),
        gateway.post("wrong", "chat/completions", ASK),
        gateway.get(tenant.key, "models/toy:none"),
    ]
    assert [answer.status_code for answer in answers] == [400, 404, 404, 401, 404]
    for answer in answers:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer"}, {"authorization": "Basic abc"}])
def test_no_key(gateway: Served, header: dict[str, str]) -> None:
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=ASK, headers=header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_an_upgrade_to_a_web_socket_is_a_plain_request(gateway: Served) -> None:
    handshake = (
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw(gateway, handshake).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("form", ["?api_key={}", "?key={}", "?{}", "?x={}", "?x=a&access%5Ftoken={}"])
def test_a_key_in_the_url_is_refused(gateway: Served, tenant: TenantOfTest, form: str, method: str) -> None:
    """AUTH-03: even beside a valid one in its place."""
    path = "models" if method == "GET" else "chat/completions"
    url = f"{gateway.url}/v1/{path}{form.format(tenant.key)}"
    answer = httpx.request(method, url, headers={"authorization": f"Bearer {tenant.key}"})
    assert answer.status_code == 401
    assert tenant.key not in answer.text


def test_no_log_holds_a_key(gateway: Served, tenant: TenantOfTest, caplog: pytest.LogCaptureFixture) -> None:
    """AUTH-03: in the query, percent-encoded, in the path, in a header, in the body; at DEBUG."""
    caplog.handler.addFilter(Redact())
    key, secret = tenant.key, tenant.key[17:]
    encoded = "".join(f"%{byte:02x}" for byte in key.encode())
    with caplog.at_level(logging.DEBUG, logger="uvicorn"), caplog.at_level(logging.DEBUG, logger="tenora_platform"):
        httpx.get(f"{gateway.url}/v1/models?api_key={key}")
        httpx.get(f"{gateway.url}/v1/models?api_key={encoded}")
        httpx.get(f"{gateway.url}/v1/models/{key}", headers={"authorization": f"Bearer {key}", "referer": key})
        httpx.get(f"{gateway.url}/v1/models/{encoded}")
        gateway.post(key, "chat/completions", {**ASK, "user": key})
        gateway.post(key + "x", "chat/completions", {**ASK, "model": key})
    ours = [record for record in caplog.records if record.name.startswith(("uvicorn", "tenora"))]
    assert len([record for record in ours if record.name == "uvicorn.access"]) == 6
    for form in (secret, encoded, base64.b64encode(key.encode()).decode(), quote(secret)):
        assert not [record.getMessage() for record in ours if form.lower() in record.getMessage().lower()]


def test_the_log_configuration_redacts_every_handler() -> None:
    """AUTH-03"""
    config = uvicorn_options()["log_config"]
    assert all(handler["filters"] == ["redact"] for handler in config["handlers"].values())


def test_idle_connections_are_kept_longer_than_clients_keep_them() -> None:
    """API-21: the client closes first, so it never sends into a socket that is being closed."""
    assert uvicorn_options()["timeout_keep_alive"] == KEEP_ALIVE_S > OPENAI_CLIENT_IDLE_S


def test_a_body_that_ends_early_is_nobodys_request(gateway: Served, tenant: TenantOfTest) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\n"
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
