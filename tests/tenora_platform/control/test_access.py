"""AUTH-06: who may do what; and another tenant's objects look exactly like none."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from tenora_platform.control.app import build_api
from tenora_platform.control.resources import Resources
from tenora_platform.db.models import Adapter, AdapterUpload, AdapterVersion, ApiKey, BaseModelRow, Export, Role
from tenora_platform.db.session import PLATFORM

DOCUMENT = build_api(None).openapi()
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
INSIDE_TENANT = sorted(name for name, (_, path, _) in OPERATIONS.items() if "{tenant_id}" in path)
OF_THE_PLATFORM = sorted(name for name, (_, path, _) in OPERATIONS.items() if "{tenant_id}" not in path)
FILES = {"files": ("adapter_config.json", b"{}")}
# A body that passes the schema, for every operation that takes one: a new operation without one fails here.
BODIES: dict[str, dict[str, Any]] = {
    "signIn": {"json": {"username": "x", "password": "x"}},
    "createTenant": {"json": {"name": "new"}},
    "changeTenant": {"json": {"display_name": "changed"}},
    "createKey": {"json": {"name": "k"}},
    "setQuota": {"json": {"requests_per_minute": 1, "tokens_per_minute": 1}},
    "requestExport": {"json": {"period": "2025-07"}},
    "uploadAdapter": {"data": {"name": "a"}, "files": FILES},
    "registerBaseModel": {"json": {"name": "x", "folder": "/nowhere"}},
    "setAdapterQuota": {"json": {"max_adapters": 9, "max_bytes": None}},
    "createUpload": {"json": {"name": "bot", "files": [{"filename": "a.zip", "size": 1}]}},
    "sendUploadChunk": {"content": b"x", "headers": {"Upload-Offset": "0"}},
    "promoteVersion": {"json": {"version": 1}},
    "setCanary": {"json": {"version": 1, "percent": 10}},
    "setAcceptedNames": {"json": {"accepted_names": ["org/tiny"]}},
    "addPrice": {
        "json": {
            "base_model": "tiny",
            "effective_from": "2025-01-01T00:00:00Z",
            "currency": "EUR",
            "prompt_per_million": "1",
            "cached_per_million": "1",
            "completion_per_million": "1",
        }
    },
}
WRITERS = {"createKey", "revokeKey", "uploadAdapter", "deleteAdapter", "requestExport"}
WRITERS |= {"promoteVersion", "rollBackAdapter", "setCanary", "endCanary", "retireVersion", "deleteVersion"}
WRITERS |= {"createUpload", "sendUploadChunk", "finishUpload", "cancelUpload"}
GOVERNORS = {"changeTenant", "setQuota", "setAdapterQuota"}
BOOKS = {"getUsage", "listExports", "getExport", "downloadExport", "getManifest"}
FOR_ALL = {"getSession", "signIn", "signOut", "listTenants", "listBaseModels"}


@pytest.fixture
def objects(resources: Resources, make_tenant: Callable[..., uuid.UUID]) -> dict[str, dict[str, uuid.UUID]]:
    """Of tenants `a` and `b`: one of everything that has an id in a path."""
    made = {}
    for name in ("a", "b"):
        tenant_id = make_tenant(name)
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            base = session.scalars(select(BaseModelRow)).one()
            key = ApiKey(tenant_id=tenant_id, name="k", prefix=name, key_sha256=b"-")
            adapter = Adapter(tenant_id=tenant_id, base_model_id=base.id, name="bot")
            now = datetime(2025, 7, 1, tzinfo=UTC)
            export = Export(
                tenant_id=tenant_id,
                period_first_day=now.date(),
                period_last_day=now.date(),
                timezone="UTC",
                starts_at=now,
                ends_at=now.replace(day=2),
                revision=1,
                status="pending",
            )
            upload = AdapterUpload(
                tenant_id=tenant_id,
                name="bot",
                confirm_base=False,
                promote=True,
                files=[{"filename": "a.zip", "size": 1}],
                size_bytes=1,
                received_bytes=0,
                num_chunks=0,
                expires_at=datetime.now(UTC) + timedelta(hours=1),
            )
            session.add_all([key, adapter, export, upload])
            session.flush()
            version = AdapterVersion(
                tenant_id=tenant_id,
                adapter_id=adapter.id,
                number=1,
                digest="d" * 64,
                size_bytes=1,
                status="ready",
                report={},
            )
            session.add(version)
            session.flush()
            made[name] = {
                "tenant_id": tenant_id,
                "base_model_id": base.id,
                "key_id": key.id,
                "adapter_id": adapter.id,
                "version_id": version.id,
                "export_id": export.id,
                "upload_id": upload.id,
            }
    return made


def what_deletes_last(name: str) -> tuple[bool, int]:
    """And of that, a thing before what it is part of."""
    method, path, _ = OPERATIONS[name]
    return method == "delete", -path.count("/")


def call(client: TestClient, name: str, ids: dict[str, uuid.UUID]) -> Any:
    method, path, operation = OPERATIONS[name]
    if "requestBody" in operation:
        assert name in BODIES, "give this operation a body above"
    return client.request(method, path.format(**ids), **BODIES.get(name, {}))


def roles_client(sign_in: Any, make_user: Any, role: Role, tenant_id: uuid.UUID | None) -> TestClient:
    make_user("someone", role, tenant_id)
    client: TestClient = sign_in("someone")
    return client


@pytest.mark.parametrize("role", [Role.TENANT_ADMIN, Role.TENANT_VIEWER, Role.BILLING])
def test_objects_of_another_tenant_are_not_there(objects: Any, sign_in: Any, make_user: Any, role: Role) -> None:
    """AUTH-06: every route, with A's ids, as B; the answer is that for ids that nobody has, byte for byte."""
    client = roles_client(sign_in, make_user, role, objects["b"]["tenant_id"])
    nothing = {name: uuid.UUID(int=7) for name in objects["a"]}
    for name in INSIDE_TENANT:
        answer, expected = call(client, name, objects["a"]), call(client, name, nothing)
        assert answer.status_code == expected.status_code == 404, (name, answer.text)
        assert answer.content == expected.content, name


def test_ids_of_another_tenant_within_ones_own(objects: Any, sign_in: Any, make_user: Any) -> None:
    """AUTH-06: B's tenant in the path, and A's key, adapter, version, export behind it."""
    client = roles_client(sign_in, make_user, Role.TENANT_ADMIN, objects["b"]["tenant_id"])
    with_id = [name for name in INSIDE_TENANT if OPERATIONS[name][1].count("{") > 1]
    assert len(with_id) >= 6
    for name in with_id:
        mixed = objects["a"] | {"tenant_id": objects["b"]["tenant_id"]}
        answer = call(client, name, mixed)
        assert answer.status_code == 404, (name, answer.text)
    mixed = objects["b"] | {"version_id": objects["a"]["version_id"]}
    assert call(client, "getVersion", mixed).status_code == 404


def test_ones_own_objects_are_there(objects: Any, sign_in: Any, make_user: Any) -> None:
    """The other half of the proof: with the right ids the same calls do not say 404."""
    client = roles_client(sign_in, make_user, Role.TENANT_ADMIN, objects["b"]["tenant_id"])
    for name in sorted(INSIDE_TENANT, key=what_deletes_last):
        assert call(client, name, objects["b"]).status_code != 404, name


def test_lists_hold_ones_own_only(objects: Any, sign_in: Any, make_user: Any) -> None:
    """AUTH-06: LiteLLM #28864 listed everything."""
    b = objects["b"]
    client = roles_client(sign_in, make_user, Role.TENANT_ADMIN, b["tenant_id"])
    assert [item["id"] for item in call(client, "listTenants", b).json()["items"]] == [str(b["tenant_id"])]
    for name, key in (
        ("listKeys", "key_id"),
        ("listAdapters", "adapter_id"),
        ("listExports", "export_id"),
        ("listUploads", "upload_id"),
    ):
        assert [item["id"] for item in call(client, name, b).json()["items"]] == [str(b[key])]


@pytest.mark.parametrize("role", [Role.TENANT_ADMIN, Role.TENANT_VIEWER, Role.BILLING])
def test_what_each_role_may(objects: Any, sign_in: Any, make_user: Any, role: Role) -> None:
    a = objects["a"]
    client = roles_client(sign_in, make_user, role, a["tenant_id"])
    forbidden = set(GOVERNORS)
    if role is not Role.TENANT_ADMIN:
        forbidden |= WRITERS
    if role is Role.BILLING:
        forbidden |= set(INSIDE_TENANT) - BOOKS - {"getTenant"}
    for name in sorted(INSIDE_TENANT, key=what_deletes_last):
        answer = call(client, name, a)
        assert (answer.status_code == 403) == (name in forbidden), (name, answer.text)
    for name in set(OF_THE_PLATFORM) - FOR_ALL:
        assert call(client, name, a).status_code == 403, name


def test_a_platforms_billing_person_reads_all_books(objects: Any, sign_in: Any, make_user: Any) -> None:
    client = roles_client(sign_in, make_user, Role.BILLING, None)
    for name in BOOKS:
        assert call(client, name, objects["a"]).status_code in (200, 409), name
    assert call(client, "listKeys", objects["a"]).status_code == 403
    assert call(client, "listAudit", objects["a"]).status_code == 403
    assert len(call(client, "listTenants", {}).json()["items"]) == 2


def test_nothing_without_a_session(objects: Any, anonymous: TestClient) -> None:
    for name in OPERATIONS:
        if name != "signIn":
            answer = call(anonymous, name, objects["a"])
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated"), name


def test_the_admin_may_all(objects: Any, admin: TestClient) -> None:
    for name in sorted(OPERATIONS, key=what_deletes_last):
        if name not in ("signIn", "signOut"):
            assert call(admin, name, objects["a"]).status_code not in (401, 403, 404), name
