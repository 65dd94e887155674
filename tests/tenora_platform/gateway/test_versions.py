"""ADP-16, ADP-17: versions change while requests are queued and running, by the control plane's own functions.

The gateway's cache is made to last an hour here: only the news of a change can have it forget.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_under_test import BASE, Served, TenantOfTest, contents
from scripted_engine import Script, ScriptedEngine
from sqlalchemy import select

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters import service, serving
from tenora_platform.control.resources import Resources, open_resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import Adapter, AdapterVersion, ApiKey
from tenora_platform.gateway.canary import asker_of, bucket
from tenora_platform.settings import Settings

NAME = f"{BASE}:bot"
TOKENS = 200


@dataclass(frozen=True)
class Controlled:
    """The tenant's adapter `bot`, as the control plane changes it."""

    resources: Resources
    tenant: TenantOfTest

    def change(self, call: Callable[..., None], *arguments: Any) -> None:
        with transaction(self.resources, self.tenant.id, "somebody") as work:
            call(work, self.tenant.id, self._adapter_id(), *arguments)

    def version_id(self, number: int) -> uuid.UUID:
        with self.tenant.database.session() as session:
            mine = (AdapterVersion.adapter_id == self._adapter_id(), AdapterVersion.number == number)
            return session.scalars(select(AdapterVersion.id).where(*mine)).one()

    def _adapter_id(self) -> uuid.UUID:
        with self.tenant.database.session() as session:
            mine = (Adapter.tenant_id == self.tenant.id, Adapter.deleted_at.is_(None))
            return session.scalars(select(Adapter.id).where(*mine)).one()


@pytest.fixture
def gateway_settings(gateway_settings: Settings) -> Settings:
    return gateway_settings.model_copy(update={"key_cache_s": 3600.0})


@pytest.fixture
def control(gateway_settings: Settings, tenant: TenantOfTest, tmp_path: Path) -> Iterator[Controlled]:
    held = open_resources(gateway_settings.model_copy(update={"blob_url": f"file://{tmp_path}/blobs"}))
    yield Controlled(held, tenant)
    held.close()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def ask(gateway: Served, tenant: TenantOfTest, model: str = NAME) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    return gateway.post(tenant.key, "chat/completions", body)


def stream(gateway: Served, tenant: TenantOfTest) -> list[dict[str, Any]]:
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS}
    return gateway.stream(tenant.key, "chat/completions", body)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def digest_of(engine: ScriptedEngine, position: int) -> str | None:
    adapters = engine.submits[position].adapters
    return adapters[0].digest if adapters else None


@pytest.fixture
def paused(engine: ScriptedEngine, gateway: Served, background: ThreadPoolExecutor) -> Callable[..., Any]:
    """Begin a stream of TOKENS tokens, held by the engine after so many of them."""

    def begin(tenant: TenantOfTest, after: int) -> tuple[Script, Future[list[dict[str, Any]]]]:
        script = Script(endless=True, pause_after=after)
        engine.scripts.append(script)
        running = background.submit(stream, gateway, tenant)
        engine.wait_for(lambda: bool(engine.submits) and engine.produced[engine.submits[-1].request_id] == after)
        return script, running

    return begin


@pytest.mark.parametrize("after", [0, 3])
def test_a_stream_ends_on_the_version_it_began_with(
    gateway: Served, engine: ScriptedEngine, control: Controlled, tenant: TenantOfTest, paused: Any, after: int
) -> None:
    """ADP-16: queued in the engine, or three tokens in, while v2 comes, serves, and v1 is deleted."""
    first = tenant.adapter("bot")
    script, running = paused(tenant, after)
    second = tenant.adapter("bot")
    with tenant.database.session() as session, session.begin():  # as an upload that is not to be promoted leaves it
        adapter = session.scalars(select(Adapter).where(Adapter.tenant_id == tenant.id)).one()
        adapter.active_version_id = session.scalars(
            select(AdapterVersion.id).where(AdapterVersion.digest == first)
        ).one()
    assert ask(gateway, tenant).status_code == 200
    assert digest_of(engine, -1) == first
    control.change(serving.promote, 2)
    until(lambda: ask(gateway, tenant).status_code == 200 and digest_of(engine, -1) == second)
    control.change(serving.delete_version, control.version_id(1))
    until(lambda: ask(gateway, tenant, f"{NAME}@1").status_code == 404)

    script.go_on.set()
    events = running.result(30)
    assert len([text for text in contents(events) if text]) == TOKENS
    assert digest_of(engine, 0) == first
    assert {event["system_fingerprint"] for event in events} == {events[0]["system_fingerprint"]}
    until(lambda: len(tenant.usage()) == len(engine.submits))
    by_tokens = {row.completion_tokens: row.version_digest for row in tenant.usage()}
    assert by_tokens[TOKENS] == first, "the bill names the version that answered"
    assert by_tokens[2] in (first, second)


@pytest.mark.parametrize("after", [0, 3])
def test_a_deleted_adapter_answers_404_at_once_and_what_runs_ends(
    gateway: Served, engine: ScriptedEngine, control: Controlled, tenant: TenantOfTest, paused: Any, after: int
) -> None:
    """ADP-17: never the base's answer; the same name made again is another adapter."""
    first = tenant.adapter("bot")
    script, running = paused(tenant, after)
    control.change(service.delete_adapter)
    until(lambda: ask(gateway, tenant).status_code == 404)
    submitted = len(engine.submits)
    for model in (NAME, f"{NAME}@1"):
        answer = ask(gateway, tenant, model)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(engine.submits) == submitted

    again = tenant.adapter("bot")
    with transaction(control.resources, tenant.id, "somebody") as work:
        work.publish(Change(ChangeKind.ADAPTER, tenant.id))  # as the worker says when it is ready
    until(lambda: ask(gateway, tenant).status_code == 200)
    assert digest_of(engine, -1) == again

    script.go_on.set()
    assert len([text for text in contents(running.result(30)) if text]) == TOKENS
    assert digest_of(engine, 0) == first


def test_retired_versions_take_no_new_requests(
    gateway: Served, engine: ScriptedEngine, control: Controlled, tenant: TenantOfTest
) -> None:
    first, second = tenant.adapter("bot"), tenant.adapter("bot")
    assert ask(gateway, tenant, f"{NAME}@1").status_code == 200
    assert digest_of(engine, -1) == first
    control.change(serving.retire, control.version_id(1))
    until(lambda: ask(gateway, tenant, f"{NAME}@1").status_code == 404)
    assert ask(gateway, tenant).status_code == 200
    assert digest_of(engine, -1) == second


def test_a_canary_and_its_end_reach_the_gateway(
    gateway: Served, engine: ScriptedEngine, control: Controlled, tenant: TenantOfTest
) -> None:
    """From 1 % to 99 %, and back to none: the key's own requests move with it."""
    first, second = tenant.adapter("bot"), tenant.adapter("bot")

    def served() -> str | None:
        assert ask(gateway, tenant).status_code == 200
        return digest_of(engine, -1)

    assert served() == second
    control.change(serving.start_canary, 1, 99)
    with tenant.database.session() as session:
        adapter = session.scalars(select(Adapter).where(Adapter.tenant_id == tenant.id)).one()
        key_id = session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == tenant.id)).one()
    wanted = first if bucket(adapter.id, asker_of(None, key_id)) < 99 else second
    until(lambda: served() == wanted)
    control.change(serving.end_canary)
    until(lambda: served() == second)
    control.change(serving.promote, 1)
    until(lambda: served() == first)
    control.change(serving.roll_back)
    until(lambda: served() == second)
