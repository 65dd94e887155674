"""The calls of the control API that tests of adapters make, and the worker's check run by hand."""

from __future__ import annotations

import uuid
from typing import Any

import adapter_files as files
from fastapi.testclient import TestClient

from tenora_platform.control.adapters import tasks
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.session import PLATFORM


def url(tenant: uuid.UUID, *rest: str) -> str:
    return "/".join([f"/api/v1/tenants/{tenant}/adapters", *rest])


def upload(client: TestClient, tenant: uuid.UUID, parts: Any = None, **fields: str) -> Any:
    return client.post(url(tenant), data={"name": "bot"} | fields, files=files.pair() if parts is None else parts)


def check(resources: Resources, version: dict[str, Any]) -> None:
    with transaction(resources, PLATFORM, "system") as work:
        tasks.validate(work, uuid.UUID(version["id"]))


def ready(client: TestClient, resources: Resources, tenant: uuid.UUID, **given: Any) -> dict[str, Any]:
    answer = upload(client, tenant, files.pair(**given))
    assert answer.status_code == 202, answer.text
    check(resources, answer.json()["version"])
    detail: dict[str, Any] = client.get(url(tenant, answer.json()["adapter"]["id"])).json()
    return detail


def blobs(resources: Resources) -> set[str]:
    root = resources.blobs.root  # type: ignore[attr-defined]
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def audit(client: TestClient, count: int) -> list[dict[str, Any]]:
    """The newest entries, newest first."""
    items: list[dict[str, Any]] = client.get("/api/v1/audit").json()["items"]
    return items[:count]
