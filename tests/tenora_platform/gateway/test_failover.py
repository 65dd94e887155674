"""ENG-04 as the gateway sees it: engines that die, come back, stall, or are full."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import redis
from gateway_under_test import FINGERPRINT, Database, Served, TenantOfTest
from scripted_engine import Script, ScriptedEngine

from tenora_engine.wire import FailCode, Status
from tenora_platform.gateway import link, runs
from tenora_platform.settings import Settings

ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _quick_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ENGINE_TIMEOUT_S", 0.6)


@pytest.fixture
def other(token_ids: dict[bytes, int]) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(FINGERPRINT, token_ids, engine_id="engine-1").start()
    yield engine
    engine.kill()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_an_engine_killed_in_a_stream(gateway: Served, database: Database, engine: ScriptedEngine) -> None:
    """An error event in OpenAI's shape, usage of what was delivered once, and the restarted engine serves the next."""
    tenant = database.tenant(requests_per_minute=10, tokens_per_minute=1000)
    engine.scripts = [Script(endless=True, die_after=3)]
    events = gateway.stream(tenant.key, "chat/completions", {**ASK, "max_tokens": 50})
    assert len(events) == 4
    assert (events[-1]["error"]["type"], events[-1]["error"]["code"]) == ("server_error", "engine_lost")
    engine.restart()
    after = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 2})
    assert after.status_code == 200
    failed, completed = tenant.wait_for_usage(2)
    assert (failed.outcome, failed.prompt_tokens, failed.completion_tokens) == ("failed", 21, 3)
    assert completed.outcome == "completed"
    assert after.headers["x-ratelimit-remaining-tokens"] == str(1000 - 24 - 23)


def test_a_request_lost_before_its_first_token_runs_on_the_restarted_engine(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.scripts = [Script(die_after=0)]
    answer = background.submit(gateway.post, tenant.key, "chat/completions", ASK)
    engine.wait_for(lambda: len(engine.submits) == 1)
    engine.restart()
    assert answer.result(20).json()["choices"][0]["message"]["content"] == "Hello ok"
    assert len({submit.request_id for submit in engine.submits}) == 2
    (row,) = tenant.wait_for_usage()
    assert (row.outcome, row.completion_tokens) == ("completed", 2)


def test_a_request_lost_before_its_first_token_runs_on_another_engine(
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    tenant: TenantOfTest,
    engine: ScriptedEngine,
    other: ScriptedEngine,
) -> None:
    settings = gateway_settings.model_copy(update={"engines": f"{engine.url},{other.url}"})
    gateway = start_gateway(settings)
    engine.wait_for(lambda: bool(engine.peers))
    other.wait_for(lambda: bool(other.peers))
    gateway.get(tenant.key, "models")  # by now both statuses are in
    engine.default = Script(die_after=0)
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
    assert (len(engine.submits), len(other.submits)) == (1, 1)


def test_no_engine_in_time(
    start_gateway: Callable[[Settings], Served], gateway_settings: Settings, database: Database, engine: ScriptedEngine
) -> None:
    """503 with a wait, nothing billed, nothing counted."""
    tenant = database.tenant(requests_per_minute=1)
    engine.kill()
    gateway = start_gateway(gateway_settings.model_copy(update={"max_pending_s": 0.2}))
    for stream in (True, False):
        answer = gateway.post(tenant.key, "chat/completions", {**ASK, "stream": stream})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "service_unavailable"
        assert int(answer.headers["retry-after"]) >= 1
    assert httpx.get(f"{gateway.url}/readyz").status_code == 503
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    engine.start(engine.url)
    engine.wait_for(lambda: bool(engine.peers))
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
    assert [row.outcome for row in tenant.wait_for_usage()] == ["completed"]


def test_a_request_waits_for_an_engine_that_starts(
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    tenant: TenantOfTest,
    engine: ScriptedEngine,
    background: ThreadPoolExecutor,
) -> None:
    engine.kill()
    gateway = start_gateway(gateway_settings)
    answer = background.submit(gateway.post, tenant.key, "chat/completions", ASK)
    engine.start(engine.url)
    assert answer.result(20).status_code == 200


def test_a_client_that_leaves_while_it_waits_costs_nothing(
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    database: Database,
    engine: ScriptedEngine,
) -> None:
    """QTA-03: disconnect in the queue."""
    tenant = database.tenant(requests_per_minute=1)
    engine.kill()
    gateway = start_gateway(gateway_settings)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{gateway.url}/v1/chat/completions",
            json=ASK,
            headers={"authorization": f"Bearer {tenant.key}"},
            timeout=0.5,
        )
    engine.start(engine.url)
    assert gateway.client(tenant.key).with_options(max_retries=5).chat.completions.create(**ASK).choices
    assert [row.outcome for row in tenant.wait_for_usage()] == ["completed"]
    assert len(engine.submits) == 1


def test_every_request_of_a_lost_engine_ends_once(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    """Eight streams, one kill: eight error events, eight settlements."""
    engine.default = Script(endless=True, pause_after=2)
    streams = [background.submit(gateway.stream, tenant.key, "chat/completions", ASK) for _ in range(8)]
    engine.wait_for(lambda: list(engine.produced.values()) == [2] * 8)
    engine.kill()
    for stream in streams:
        assert stream.result(20)[-1]["error"]["code"] == "engine_lost"
    rows = tenant.wait_for_usage(8)
    assert [(row.outcome, row.completion_tokens) for row in rows] == [("failed", 2)] * 8


def test_a_full_engine_is_told_as_busy(
    start_gateway: Callable[[Settings], Served],
    gateway_settings: Settings,
    tenant: TenantOfTest,
    engine: ScriptedEngine,
) -> None:
    engine.max_waiting = 0
    gateway = start_gateway(gateway_settings.model_copy(update={"max_pending_s": 0.3}))
    engine.wait_for(lambda: bool(engine.peers))
    answer = gateway.post(tenant.key, "chat/completions", ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
    assert answer.headers["retry-after"] == "1"


def test_an_overloaded_engine_is_left_alone_until_it_has_news(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    engine.scripts = [Script(pieces=(), fail=FailCode.OVERLOADED, retryable=True)]
    assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
    assert len(engine.submits) == 2


def test_a_slow_client_slows_nobody_and_is_bounded(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client reads nothing: others are answered; past the bound its own request is ended, billed as it stands."""
    monkeypatch.setattr(runs, "MAX_WAITING_UNITS", 5_000)
    slow = Script(endless=True)
    engine.respond = lambda submit: slow if submit.sampling.n == 128 else Script()
    engine.step_s = 0.01
    body = {**ASK, "stream": True, "n": 128, "max_tokens": 235, "logprobs": True}
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30) as answer:
        for _ in range(5):
            assert gateway.post(tenant.key, "chat/completions", ASK).status_code == 200
        engine.wait_for(lambda: len(engine.aborts) > 0, timeout_s=30)
        *_, last = [line for line in answer.iter_lines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "client_too_slow"
    row = next(row for row in tenant.wait_for_usage(6) if row.outcome != "completed")
    produced = max(engine.produced.values())
    assert 20 * 128 < produced < 235 * 128  # what the sockets took, and the bound
    assert (row.outcome, row.completion_tokens) == ("aborted", produced)


def test_the_engines_status_is_published(gateway: Served, engine: ScriptedEngine, redis_url: str) -> None:
    import msgspec

    with redis.Redis.from_url(redis_url) as client:
        engine.wait_for(lambda: client.get("tenora:engines:engine-0") is not None)
        status = msgspec.json.decode(client.get("tenora:engines:engine-0"), type=Status)
        assert status.base_fingerprint == FINGERPRINT
        assert 0 < client.ttl("tenora:engines:engine-0") <= 5
    assert httpx.get(f"{gateway.url}/readyz").json() == {
        "ready": True,
        "parts": {"database": True, "redis": True, "engine": True, "background": True},
    }
