"""A real worker with its beat does what the control API asks for: over HTTP, queue, process, blobs and news."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from adapter_files import pair
from fastapi.testclient import TestClient

from tenora_platform.changes import CHANNEL, Change, ChangeKind, decode_change
from tenora_platform.control.resources import Resources
from tenora_platform.settings import Settings


@pytest.fixture
def worker(control_settings: Settings, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "TENORA_DATABASE_URL": control_settings.database_url,
        "TENORA_REDIS_URL": control_settings.redis_url,
        "TENORA_BLOB_URL": control_settings.blob_url,
    }
    command = [sys.executable, "-m", "celery", "-A", "tenora_platform.worker.app", "worker", "--beat"]
    command += ["--concurrency", "1", "--schedule", str(tmp_path / "beat"), "--loglevel", "WARNING"]
    process = subprocess.Popen(command, env=environment, cwd=tmp_path)
    yield process
    process.terminate()
    process.wait(30)


def test_adapter_and_export(
    admin: TestClient,
    resources: Resources,
    make_tenant: Callable[..., uuid.UUID],
    add_event: Callable[..., None],
    worker: subprocess.Popen[bytes],
) -> None:
    """Design, flows 2 and 3; BILL-03."""
    tenant = make_tenant("acme", "Europe/Berlin")
    path = f"/api/v1/tenants/{tenant}"
    add_event(tenant, datetime(2025, 7, 10, tzinfo=UTC))
    with resources.redis.pubsub(ignore_subscribe_messages=True) as news:
        news.subscribe(CHANNEL)
        export = admin.post(f"{path}/exports", json={"period": "2025-07"}).json()
        adapter = admin.post(f"{path}/adapters", data={"name": "bot"}, files=pair()).json()["adapter"]
        message = _until(lambda: news.get_message(timeout=1), worker)
    assert decode_change(message["data"]) == Change(ChangeKind.ADAPTER, tenant)
    assert admin.get(f"{path}/adapters/{adapter['id']}").json()["active_version"]["status"] == "ready"

    made = _until(lambda: _ready(admin.get(f"{path}/exports/{export['id']}").json()), worker)
    rows = list(csv.DictReader(io.StringIO(admin.get(f"{path}/exports/{export['id']}/file").text, newline="")))
    assert [row["requests"] for row in rows] == ["1"]
    assert admin.get(f"{path}/exports/{export['id']}/manifest").json()["sha256"] == made["sha256"]


def _ready(export: dict[str, Any]) -> dict[str, Any] | None:
    return export if export["status"] == "ready" else None


def _until(look: Callable[[], Any], worker: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + 90
    while (found := look()) is None:
        assert worker.poll() is None, "the worker ended"
        assert time.monotonic() < deadline, "the worker did not do it"
    return found
