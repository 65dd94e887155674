"""BILL-10 and API-19: what each way of ending costs, against the engine's own count."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from gateway_under_test import Database, Served, TenantOfTest
from scripted_engine import Script, ScriptedEngine

from tenora_engine.wire import FailCode

ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
PROMPT_TOKENS = 21


def test_streamed_and_not_make_equal_rows(gateway: Served, database: Database, engine: ScriptedEngine) -> None:
    """BILL-10"""
    tenant = database.tenant()
    digest = tenant.adapter("pirate")
    engine.default = Script(pieces=(b"Hello", b" ok", b" world"), cached=16)
    body = {**ASK, "model": "toy:pirate", "seed": 1, "n": 2}
    gateway.post(tenant.key, "chat/completions", body)
    gateway.stream(tenant.key, "chat/completions", body)
    rows = tenant.wait_for_usage(2)
    for row in rows:
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (PROMPT_TOKENS, 16, 6)
        assert (row.outcome, row.endpoint, row.base_model) == ("completed", "chat.completions", "toy")
        assert (row.adapter, row.version_digest) == ("pirate", digest)
        assert row.started_at <= row.finished_at
    assert rows[0].request_id != rows[1].request_id
    assert list(engine.produced.values()) == [6, 6]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_the_engines_work(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, stream: bool
) -> None:
    """API-19, BILL-10: reset in the middle; billed is the prompt and exactly what the engine had made."""
    engine.default = Script(endless=True)
    engine.step_s = 0.005
    address = urlsplit(gateway.url)
    body = httpx.Request(
        "POST",
        f"{gateway.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {tenant.key}"},
        json={**ASK, "stream": stream, "max_tokens": 200},
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
    with socket.create_connection((address.hostname, address.port)) as raw:
        raw.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body.read())
        if stream:
            received = b""
            while received.count(b"data: ") < 3:
                received += raw.recv(4096)
        else:
            engine.wait_for(lambda: sum(engine.produced.values()) >= 3)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    engine.wait_for(lambda: len(engine.aborts) == 1, timeout_s=1.0)
    (row,) = tenant.wait_for_usage()
    (produced,) = engine.produced.values()
    assert 3 <= produced < 200
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("aborted", PROMPT_TOKENS, produced)


def test_the_stock_client_may_close_its_stream(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-19"""
    engine.default = Script(endless=True)
    engine.step_s = 0.005
    with gateway.client(tenant.key).chat.completions.create(**ASK, stream=True, max_tokens=200) as stream:
        next(iter(stream))
    (row,) = tenant.wait_for_usage()
    (produced,) = engine.produced.values()
    assert (row.outcome, row.completion_tokens) == ("aborted", produced)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
def test_an_engines_failure(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, stream: bool, after: int
) -> None:
    """BILL-10: nothing before the first token; what was made until then after it. In OpenAI's shape, told once."""
    engine.default = Script(pieces=(b"Hello", b" ok")[:after], fail=FailCode.INTERNAL)
    if stream and after:
        events = gateway.stream(tenant.key, "chat/completions", ASK)
        error = events[-1]["error"]
        assert len(events) == after + 1
    else:
        answer = gateway.post(tenant.key, "chat/completions", {**ASK, "stream": stream})
        assert answer.status_code == 500
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal")
    (row,) = tenant.wait_for_usage()
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("failed", PROMPT_TOKENS, after)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailCode.INVALID, 400),
        (FailCode.OVERLOADED, 429),
        (FailCode.SHUTTING_DOWN, 503),
        (FailCode.BASE_MISMATCH, 503),
    ],
)
def test_a_request_that_no_engine_took_costs_nothing(
    gateway: Served, database: Database, engine: ScriptedEngine, redis_url: str, code: FailCode, status: int
) -> None:
    """QTA-03: no event, no request and no token counted. The next one, which works, is the only one in the books."""
    tenant = database.tenant(requests_per_minute=10, tokens_per_minute=10_000)
    engine.scripts = [Script(pieces=(), fail=code)]
    answer = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 5})
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status != 400)
    after = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 5})
    assert after.headers["x-ratelimit-remaining-requests"] == "9"
    assert after.headers["x-ratelimit-remaining-tokens"] == str(10_000 - PROMPT_TOKENS - 5)
    assert [row.outcome for row in tenant.wait_for_usage(1)] == ["completed"]


def test_retryable_failures_are_tried_again(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    engine.scripts = [Script(pieces=(), fail=FailCode.ADAPTER_UNAVAILABLE, retryable=True)]
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
    engine.default = Script(pieces=(), fail=FailCode.ADAPTER_UNAVAILABLE, retryable=True)
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 503
    assert len(engine.submits) == 2 + 3


@pytest.mark.parametrize(
    "body",
    [
        {**ASK, "temperature": 9},
        {**ASK, "model": "toy:none"},
        {**ASK, "messages": [{"role": "user", "content": "raise"}]},
        {**ASK, "max_tokens": 10_000},
        {**ASK, "logit_bias": {"999999": 1}},
    ],
)
def test_a_refused_request_costs_nothing(
    gateway: Served, database: Database, engine: ScriptedEngine, body: dict[str, Any]
) -> None:
    """API-06, API-10, QTA-03: the quota is the same before and after every 4xx, and the engine saw nothing."""
    tenant = database.tenant(requests_per_minute=10, tokens_per_minute=10_000)
    assert gateway.post(tenant.key, "chat/completions", body).status_code in (400, 404)
    assert engine.submits == []
    after = gateway.post(tenant.key, "chat/completions", ASK)
    assert after.headers["x-ratelimit-remaining-requests"] == "9"


def test_every_generating_route_moves_the_same_counters(
    gateway: Served, database: Database, engine: ScriptedEngine
) -> None:
    """QTA-08, as far as today's surfaces go."""
    tenant = database.tenant(requests_per_minute=100, tokens_per_minute=100_000)
    bodies = {"chat/completions": ASK, "completions": {"model": "toy", "prompt": "x" * PROMPT_TOKENS}}
    for path, body in bodies.items():
        for extra in ({}, {"stream": True}, {"n": 2}):
            assert gateway.post(tenant.key, path, {**body, **extra}).status_code == 200
    rows = tenant.wait_for_usage(6)
    spent = sum(row.prompt_tokens + row.completion_tokens for row in rows)
    assert spent == 6 * PROMPT_TOKENS + 2 * (2 + 2 + 4)
    last = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 1})
    assert last.headers["x-ratelimit-remaining-requests"] == "93"
    assert last.headers["x-ratelimit-remaining-tokens"] == str(100_000 - spent - PROMPT_TOKENS - 1)


def test_the_quota_is_refused_with_an_exact_wait(gateway: Served, database: Database) -> None:
    """QTA-04: headers and decision agree; the stock client sees a RateLimitError."""
    tenant = database.tenant(requests_per_minute=1)
    first = gateway.post(tenant.key, "chat/completions", ASK)
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    second = gateway.post(tenant.key, "chat/completions", ASK)
    assert second.status_code == 429
    error = second.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    exact_ms = int(second.headers["retry-after-ms"])
    assert 50_000 < exact_ms <= 61_000
    assert int(second.headers["retry-after"]) == -(-exact_ms // 1000)


def test_a_request_larger_than_the_limit_is_told_so(gateway: Served, database: Database) -> None:
    tenant = database.tenant(tokens_per_minute=30)
    answer = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 50})
    assert answer.status_code == 429
    assert "larger than the whole limit" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 9}).status_code == 200


def test_a_changed_quota_is_seen_at_once(gateway: Served, database: Database, redis_url: str) -> None:
    """Flow 4: the change arrives over Redis."""
    from sqlalchemy import update

    from tenora_platform.changes import CHANNEL, Change, ChangeKind, encode_change
    from tenora_platform.db.models import Quota

    tenant = database.tenant(requests_per_minute=1)
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 429
    with database.session() as session, session.begin():
        session.execute(update(Quota).where(Quota.tenant_id == tenant.id).values(requests_per_minute=5))
    with redis.Redis.from_url(redis_url) as client:
        assert client.publish(CHANNEL, encode_change(Change(ChangeKind.QUOTA, tenant.id))) == 1
    deadline = time.monotonic() + 1.0
    while (status := gateway.post(tenant.key, "chat/completions", ASK).status_code) != 200:
        assert time.monotonic() < deadline
    assert status == 200
