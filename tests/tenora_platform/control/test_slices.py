"""Tenants, keys, quotas, prices, base models, engines and the audit log, over HTTP."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from tenora_engine.wire import Status
from tenora_platform.changes import CHANNEL, Change, ChangeKind, decode_change
from tenora_platform.control.resources import Resources
from tenora_platform.db.models import ApiKey
from tenora_platform.db.session import PLATFORM
from tenora_platform.keys import key_sha256, parse_key

API = "/api/v1"


@pytest.fixture
def tenant(make_tenant: Callable[..., uuid.UUID]) -> uuid.UUID:
    return make_tenant("acme")


@pytest.fixture
def heard(resources: Resources) -> Iterator[Callable[[], Change | None]]:
    """The next change that a gateway would hear; None when there is none."""
    with resources.redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(CHANNEL)
        subscription.get_message(timeout=1)

        def next_change() -> Change | None:
            message = subscription.get_message(timeout=0.2)
            return decode_change(message["data"]) if message else None

        yield next_change


def audit(admin: TestClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = admin.get(f"{API}/audit").json()["items"]
    return items


def test_a_tenant(admin: TestClient, heard: Any) -> None:
    made = admin.post(f"{API}/tenants", json={"name": "acme", "timezone": "Europe/Berlin"})
    assert made.status_code == 201
    tenant = made.json()
    assert (tenant["display_name"], tenant["timezone"], tenant["disabled_at"]) == ("acme", "Europe/Berlin", None)
    assert admin.post(f"{API}/tenants", json={"name": "acme"}).status_code == 409
    path = f"{API}/tenants/{tenant['id']}"

    changed = admin.patch(path, json={"display_name": "ACME Ltd.", "disabled": True}).json()
    assert changed["display_name"] == "ACME Ltd."
    assert changed["disabled_at"] is not None
    assert admin.get(path).json() == changed
    assert heard() == Change(ChangeKind.TENANT, uuid.UUID(tenant["id"]))
    assert admin.patch(path, json={"disabled": True}).json() == changed, "nothing to change: nothing is told"
    assert heard() is None
    assert admin.patch(path, json={"disabled": False}).json()["disabled_at"] is None
    assert [entry["action"] for entry in audit(admin)] == ["tenant.change", "tenant.change", "tenant.create"]
    assert audit(admin)[1]["detail"] == {"display_name": "ACME Ltd.", "disabled": True}


@pytest.mark.parametrize(
    "body",
    [
        {"name": "A"},
        {"name": "-a"},
        {"name": "a" * 64},
        {"name": "a/b"},
        {"name": ""},
        {"name": 1},
        {},
        {"name": "a", "timezone": "Mars/Olympus"},
        {"name": "a", "timezone": "../../etc/passwd"},
        {"name": "a", "timezone": "/etc/localtime"},
        {"name": "a", "timezone": "Europe"},
        {"name": "a", "timezone": "localtime"},
        {"name": "a", "timezone": "posixrules"},
        {"name": "a", "timezone": "right/Europe/Berlin"},
        {"name": "a", "display_name": " a"},
        {"name": "a", "display_name": "a\nb"},
        {"name": "a", "role": "admin"},
    ],
)
def test_what_is_not_a_tenant(admin: TestClient, body: Any) -> None:
    assert admin.post(f"{API}/tenants", json=body).status_code == 400


def test_a_key_is_shown_once(admin: TestClient, resources: Resources, tenant: uuid.UUID, heard: Any) -> None:
    path = f"{API}/tenants/{tenant}/keys"
    made = admin.post(
        path, json={"name": "ci", "allowed_models": ["tiny:bot"], "expires_at": "2099-01-01T00:00:00+02:00"}
    )
    assert made.status_code == 201
    key = made.json().pop("key")
    assert parse_key(key) == made.json()["prefix"]
    assert heard() == Change(ChangeKind.API_KEY, tenant, key_prefix=made.json()["prefix"])
    (listed,) = admin.get(path).json()["items"]
    assert listed == {name: value for name, value in made.json().items() if name != "key"}
    assert (listed["allowed_models"], listed["expires_at"]) == (["tiny:bot"], "2098-12-31T22:00:00Z")

    with resources.sessions(scope=PLATFORM) as session:
        assert session.scalars(select(ApiKey)).one().key_sha256 == key_sha256(key)
        for table in session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all():
            rows = session.execute(text(f'SELECT t::text FROM "{table}" t')).scalars().all()
            assert key.rsplit("_", 1)[1] not in "".join(rows), f"AUTH-03: the key lies in {table}"


def test_a_revoked_key_stays_on_the_list(admin: TestClient, tenant: uuid.UUID, heard: Any) -> None:
    """AUTH-01: and the gateways hear of it, every time."""
    path = f"{API}/tenants/{tenant}/keys"
    key = admin.post(path, json={"name": "ci"}).json()
    heard()
    for _ in range(2):
        assert admin.delete(f"{path}/{key['id']}").status_code == 204
        assert heard() == Change(ChangeKind.API_KEY, tenant, key_prefix=key["prefix"])
    (listed,) = admin.get(path).json()["items"]
    assert listed["revoked_at"] is not None
    assert [entry["action"] for entry in audit(admin)] == ["api_key.revoke", "api_key.create"]
    assert admin.delete(f"{path}/{uuid.uuid4()}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a" * 201},
        {"name": "a", "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "a", "expires_at": "2099-01-01T00:00:00"},
        {"name": "a", "expires_at": "9999-12-31T23:59:59-23:59"},
        {"name": "a", "expires_at": "0001-01-01T00:00:00+23:59"},
        {"name": "a", "expires_at": 4102444800},
        {"name": "a", "allowed_models": []},
        {"name": "a", "allowed_models": "tiny"},
        {"name": "a", "allowed_models": ["x"] * 101},
        {"name": "a", "key": "tnr_mine"},
    ],
)
def test_what_is_not_a_key(admin: TestClient, tenant: uuid.UUID, body: Any) -> None:
    assert admin.post(f"{API}/tenants/{tenant}/keys", json=body).status_code == 400


def test_a_quota_change_reaches_the_gateways(admin: TestClient, tenant: uuid.UUID, heard: Any) -> None:
    path = f"{API}/tenants/{tenant}/quota"
    assert admin.get(path).json() == {"requests_per_minute": None, "tokens_per_minute": None, "updated_at": None}
    for limits in (
        {"requests_per_minute": 60, "tokens_per_minute": 10**12},
        {"requests_per_minute": 0, "tokens_per_minute": None},
    ):
        answer = admin.put(path, json=limits)
        assert answer.status_code == 200, answer.text
        assert {name: answer.json()[name] for name in limits} == limits
        assert heard() == Change(ChangeKind.QUOTA, tenant)
        assert audit(admin)[0]["detail"] == limits


@pytest.mark.parametrize(
    "value", ["-1", "10.5", "10.0", "1e3", "NaN", "Infinity", "1e400", '"10"', "true", "[]", str(2**63), str(10**30)]
)
def test_what_is_not_a_quota(admin: TestClient, tenant: uuid.UUID, value: str) -> None:
    """QTA-06: refused with the field's name and nothing from inside."""
    for name in ("requests_per_minute", "tokens_per_minute"):
        limits = {"requests_per_minute": "1", "tokens_per_minute": "1"} | {name: value}
        body = "{" + ", ".join(f'"{field}": {text}' for field, text in limits.items()) + "}"
        answer = admin.put(f"{API}/tenants/{tenant}/quota", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text
        assert "psycopg" not in answer.text
    assert admin.put(f"{API}/tenants/{tenant}/quota", json={"requests_per_minute": 1}).status_code == 400


PRICE = {
    "base_model": "tiny",
    "effective_from": "2025-01-01T00:00:00+01:00",
    "currency": "EUR",
    "prompt_per_million": "0.15",
    "cached_per_million": "0",
    "completion_per_million": "999999999.999999999",
}


def test_a_price(admin: TestClient) -> None:
    made = admin.post(f"{API}/prices", json=PRICE)
    assert made.status_code == 201, made.text
    (listed,) = admin.get(f"{API}/prices").json()["items"]
    assert listed["effective_from"] == "2024-12-31T23:00:00Z"
    assert (listed["prompt_per_million"], listed["completion_per_million"]) == ("0.150000000", "999999999.999999999")
    assert admin.post(f"{API}/prices", json=PRICE).status_code == 409
    assert audit(admin)[0]["detail"]["prompt_per_million"] == "0.15"


@pytest.mark.parametrize(
    "change",
    [
        {"base_model": "unknown"},
        {"base_model": "a\0b"},
        {"effective_from": "2025-01-01T00:00:00"},
        {"currency": "euro"},
        {"prompt_per_million": 0.15},
        {"prompt_per_million": "-1"},
        {"prompt_per_million": "NaN"},
        {"prompt_per_million": "Infinity"},
        {"prompt_per_million": "1e400"},
        {"prompt_per_million": "0.1234567891"},
        {"prompt_per_million": "1234567890"},
        {"prompt_per_million": ""},
    ],
)
def test_what_is_not_a_price(admin: TestClient, change: Any) -> None:
    """BILL-06: no float comes in."""
    answer = admin.post(f"{API}/prices", json=PRICE | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(change))), answer.text


def test_base_models(admin: TestClient, resources: Resources, tiny_base: Path, tmp_path: Path) -> None:
    path = f"{API}/base-models"
    (listed,) = admin.get(path).json()["items"]
    assert (listed["name"], listed["context_length"]) == ("tiny", 128)
    again = admin.post(path, json={"name": "again", "folder": str(tiny_base)})
    assert again.status_code == 409, "one model has one name"
    for folder in (str(tmp_path), "relative", "/etc", "/\0"):
        answer = admin.post(path, json={"name": "x", "folder": folder})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "folder"), answer.text
    assert admin.post(path, json={"name": "a b", "folder": "/x"}).status_code == 400


def test_what_adapters_may_call_a_base(admin: TestClient, resources: Resources, tiny_base: Path) -> None:
    """ADP-13: the operator's list, whole and sorted; every change is in the audit log."""
    path = f"{API}/base-models"
    (listed,) = admin.get(path).json()["items"]
    assert listed["accepted_names"] == []
    names = f"{path}/{listed['id']}/accepted-names"
    changed = admin.put(names, json={"accepted_names": ["org/Tiny", "a name", "org/Tiny"]})
    assert changed.json()["accepted_names"] == ["a name", "org/Tiny"]
    (entry,) = admin.get(f"{API}/audit").json()["items"]
    assert (entry["action"], entry["detail"]["accepted_names"]) == ("base_model.accept", ["a name", "org/Tiny"])
    assert admin.put(names, json={"accepted_names": []}).json()["accepted_names"] == []
    for bad in ("", " x", "a\nb", "x" * 201):
        assert admin.put(names, json={"accepted_names": [bad]}).status_code == 400
    assert admin.put(f"{path}/{uuid.uuid4()}/accepted-names", json={"accepted_names": []}).status_code == 404


def test_engines_as_the_gateways_see_them(admin: TestClient, resources: Resources) -> None:
    assert admin.get(f"{API}/engines").json() == {"items": [], "next": None}
    status = Status(
        engine_id="cpu-0",
        instance_id="i",
        base_fingerprint="f",
        build="b",
        max_model_len=128,
        block_size=16,
        kv_blocks_total=10,
        kv_blocks_free=9,
        running=1,
        waiting=0,
        load_tokens=5,
        max_waiting=64,
    )
    resources.redis.set("tenora:engines:cpu-0", msgspec.json.encode(status))
    resources.redis.set("tenora:engines:odd", json.dumps({"type": "of tomorrow"}))
    (engine,) = admin.get(f"{API}/engines").json()["items"]
    assert (engine["engine_id"], engine["kv_blocks_free"], engine["draining"]) == ("cpu-0", 9, False)


def test_the_audit_log_of_one_tenant(admin: TestClient, make_tenant: Callable[..., uuid.UUID]) -> None:
    ids = [make_tenant(name) for name in ("a", "b")]
    for tenant_id in ids:
        admin.put(f"{API}/tenants/{tenant_id}/quota", json={"requests_per_minute": 1, "tokens_per_minute": 1})
    items = admin.get(f"{API}/audit", params={"tenant_id": str(ids[0])}).json()["items"]
    assert [(entry["actor"], entry["target"]) for entry in items] == [("admin", str(ids[0]))]
