"""What leaves a transaction leaves after it has committed, and its loss fails nothing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from tenora_platform.changes import CHANNEL, Change, ChangeKind
from tenora_platform.control.queue import QUEUE
from tenora_platform.control.resources import Resources, open_resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import Quota, Tenant
from tenora_platform.db.session import PLATFORM
from tenora_platform.settings import Settings


def queued(resources: Resources) -> list[list[str]]:
    """Names and targets of the jobs in the queue."""
    messages = [json.loads(message) for message in resources.redis.lrange(QUEUE, 0, -1)]
    return [[message["headers"]["task"], message["headers"]["argsrepr"]] for message in messages]


def _make_tenant(resources: Resources, *, fail: bool) -> None:
    with transaction(resources, PLATFORM, "test") as work:
        work.session.add(Tenant(name="a", display_name="a"))  # flushed by the commit
        work.send_job("exports.freeze", uuid.UUID(int=1))
        work.publish(Change(ChangeKind.TENANT, None))
        if fail:
            raise RuntimeError("after all")


def test_a_rolled_back_transaction_says_nothing(resources: Resources) -> None:
    with resources.redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(CHANNEL)
        heard.get_message(timeout=1)
        with pytest.raises(RuntimeError):
            _make_tenant(resources, fail=True)
        assert heard.get_message(timeout=0.1) is None
    assert queued(resources) == []
    with resources.sessions(scope=PLATFORM) as session:
        assert session.scalars(select(Tenant)).all() == []


def test_a_failing_commit_says_nothing(resources: Resources, make_tenant: Callable[..., uuid.UUID]) -> None:
    make_tenant("a")
    with pytest.raises(IntegrityError, match="uq_tenants_name"):
        _make_tenant(resources, fail=False)
    assert queued(resources) == []


def test_listeners_find_what_they_are_told_of(resources: Resources, make_tenant: Callable[..., uuid.UUID]) -> None:
    """Design, flow 4: whoever hears of a change can read it."""
    tenant = make_tenant("a")
    seen: list[int] = []
    publish = resources.redis.publish

    def read_then_publish(channel: str, message: bytes) -> int:
        with resources.sessions(scope=PLATFORM) as other:
            seen.append(len(other.scalars(select(Quota)).all()))
        return int(publish(channel, message))

    resources.redis.publish = read_then_publish  # type: ignore[method-assign]
    with transaction(resources, PLATFORM, "test") as work:
        work.session.add(Quota(tenant_id=tenant))
        work.publish(Change(ChangeKind.QUOTA, tenant))
        work.publish(Change(ChangeKind.QUOTA, tenant))
        work.send_job("exports.freeze", tenant)
    assert seen == [1], "once, and after the commit"
    assert queued(resources) == [["exports.freeze", f"['{tenant}']"]]


def test_redis_away_fails_no_request(
    control_settings: Settings, admin: TestClient, app: object, make_tenant: Callable[..., uuid.UUID]
) -> None:
    """The change is committed; a lost message is what time limits and sweepers are for."""
    tenant = make_tenant("a")
    away = open_resources(control_settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"}))
    with transaction(away, PLATFORM, "test") as work:
        work.session.add(Quota(tenant_id=tenant, requests_per_minute=3))
        work.publish(Change(ChangeKind.QUOTA, tenant))
        work.send_job("exports.freeze", tenant)
    away.close()
    assert admin.get(f"/api/v1/tenants/{tenant}/quota").json()["requests_per_minute"] == 3
