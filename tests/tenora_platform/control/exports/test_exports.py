"""Exports against a real PostgreSQL: asked for over HTTP, made by the worker's own functions."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text, update

from tenora_adapters.blobs import BlobStore, BlobUnavailable
from tenora_platform.control.exports import tasks
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import Transaction, transaction
from tenora_platform.db.models import AuditEntry, Export, UsageEventRow
from tenora_platform.db.session import PLATFORM

JULY = datetime(2025, 7, 10, 12, tzinfo=UTC)
BASE = "tiny"


@pytest.fixture
def tenant(make_tenant: Callable[..., uuid.UUID]) -> uuid.UUID:
    return make_tenant("acme", "Europe/Berlin")


def run(resources: Resources, job: Callable[[Transaction, uuid.UUID], None], export_id: str) -> None:
    with transaction(resources, PLATFORM, "system") as work:
        job(work, uuid.UUID(export_id))


def ask(admin: TestClient, tenant: uuid.UUID, **body: str) -> dict[str, Any]:
    answer = admin.post(f"/api/v1/tenants/{tenant}/exports", json=body or {"period": "2025-07"})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def make(admin: TestClient, resources: Resources, tenant: uuid.UUID, **body: str) -> dict[str, Any]:
    asked = ask(admin, tenant, **body)
    run(resources, tasks.freeze, asked["id"])
    run(resources, tasks.render, asked["id"])
    made = admin.get(f"/api/v1/tenants/{tenant}/exports/{asked['id']}").json()
    assert made["status"] == "ready"
    return dict(made)


def rows(admin: TestClient, tenant: uuid.UUID, export: dict[str, Any]) -> list[dict[str, str]]:
    answer = admin.get(f"/api/v1/tenants/{tenant}/exports/{export['id']}/file")
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text, newline=""), strict=True))


def test_what_is_in_an_export(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, make_tenant: Any, add_event: Any
) -> None:
    since = "2025-01-01T00:00:00Z"
    prices = {
        "currency": "EUR",
        "prompt_per_million": "0.5",
        "cached_per_million": "0.1",
        "completion_per_million": "1.5",
    }
    answer = admin.post("/api/v1/prices", json={"base_model": BASE, "effective_from": since, **prices})
    assert answer.status_code == 201, answer.text
    for _ in range(3):
        add_event(tenant, JULY, adapter="bot", version_digest="d" * 64, prompt_tokens=1000, cached_tokens=600)
    add_event(tenant, JULY)
    add_event(tenant, JULY, base_model="without price")
    add_event(make_tenant("other"), JULY)

    export = make(admin, resources, tenant)
    found = [
        (row["day"], row["base_model"], row["adapter"], row["requests"], row["prompt_tokens"], row["amount"])
        for row in rows(admin, tenant, export)
    ]
    assert found == [
        ("2025-07-10", "tiny", "", "1", "10", "0.00001250"),
        ("2025-07-10", "tiny", "bot", "3", "3000", "0.00080250"),
        ("2025-07-10", "without price", "", "1", "10", ""),
    ]
    assert export["totals"]["amounts"] == {"EUR": "0.00081500"}
    assert export["totals"]["rows_without_price"] == 1
    manifest = admin.get(f"/api/v1/tenants/{tenant}/exports/{export['id']}/manifest").json()
    assert manifest["totals"] == export["totals"]
    assert manifest["sha256"] == export["sha256"]
    assert manifest["starts_at"] == "2025-06-30T22:00:00+00:00"


def test_midnight_is_the_tenants(admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any) -> None:
    """BILL-04: by the instant it finished, in the tenant's zone, each event in exactly one day."""
    midnight = datetime(2025, 7, 31, 22, tzinfo=UTC)  # 1 August in Berlin
    for micros in (-1, 0, 1):
        add_event(tenant, midnight + timedelta(microseconds=micros), started_at=midnight - timedelta(hours=1))
    july = make(admin, resources, tenant)
    august = make(admin, resources, tenant, period="2025-08")
    assert [(row["day"], row["requests"]) for row in rows(admin, tenant, july)] == [("2025-07-31", "1")]
    assert [(row["day"], row["requests"]) for row in rows(admin, tenant, august)] == [("2025-08-01", "2")]


def test_late_events_go_to_the_next_revision(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any
) -> None:
    """BILL-08: revision 1 never changes, and the revisions add up to the truth."""
    add_event(tenant, JULY)
    first = make(admin, resources, tenant)
    before = rows(admin, tenant, first)
    add_event(tenant, JULY, prompt_tokens=7)
    add_event(tenant, JULY + timedelta(days=40))  # not July

    second = make(admin, resources, tenant)
    assert (first["revision"], second["revision"]) == (1, 2)
    assert rows(admin, tenant, first) == before
    assert [row["prompt_tokens"] for row in rows(admin, tenant, second)] == ["7"]
    assert ask(admin, tenant)["id"] == second["id"], "nothing new: the revision that is there"


def test_made_again_it_is_the_same_to_the_byte(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any, tmp_path: Any
) -> None:
    """BILL-08: with rows in another order, other prices, another locale, time zone, hash seed and process."""
    for number in range(20):
        adapter = f"a{number % 7}" if number % 3 else None
        add_event(tenant, JULY + timedelta(hours=7 * number), adapter=adapter, prompt_tokens=number)
    export = make(admin, resources, tenant)
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(text("CREATE TEMP TABLE kept AS SELECT * FROM usage_events"))
        session.execute(text("DELETE FROM usage_events"))
        session.execute(
            text("INSERT INTO usage_events OVERRIDING SYSTEM VALUE SELECT * FROM kept ORDER BY prompt_tokens * 7 % 20")
        )
    since = "2025-01-01T00:00:00Z"
    prices = {"currency": "EUR", "prompt_per_million": "1", "cached_per_million": "1", "completion_per_million": "1"}
    assert admin.post("/api/v1/prices", json={"base_model": BASE, "effective_from": since, **prices}).is_success
    add_event(tenant, JULY)

    program = (
        "import sys, uuid\n"
        "from tenora_platform.control.exports.making import make_files\n"
        "from tenora_platform.db.models import Export, Tenant\n"
        "from tenora_platform.db.session import PLATFORM, make_engine, session_factory\n"
        "with session_factory(make_engine(sys.argv[1]))(scope=PLATFORM) as session:\n"
        "    export = session.get_one(Export, uuid.UUID(sys.argv[2]))\n"
        "    files = make_files(session, export, session.get_one(Tenant, export.tenant_id))\n"
        "    sys.stdout.buffer.write(files.csv + files.manifest)\n"
    )
    stored = b"".join(
        resources.blobs.open(f"exports/{export['id']}/{file}").read() for file in ("export.csv", "manifest.json")
    )
    elsewhere = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "123", "PGTZ": "America/New_York"}
    again = subprocess.run(
        [sys.executable, "-c", program, resources.settings.database_url, export["id"]],
        env=os.environ | elsewhere,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert again.stdout == stored


def test_an_insert_in_flight_is_not_lost(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any
) -> None:
    """BILL-08: the event with the lower number commits after the one with the higher."""
    add_event(tenant, JULY)
    with resources.sessions(scope=PLATFORM) as slow:
        slow.add(_event(tenant))
        slow.flush()  # has its sequence number, and has not committed
        add_event(tenant, JULY)
        export = ask(admin, tenant)
        freezing = threading.Thread(target=run, args=(resources, tasks.freeze, export["id"]))
        freezing.start()
        _wait_for_lock(resources)
        slow.commit()
    freezing.join()
    run(resources, tasks.render, export["id"])
    (row,) = rows(admin, tenant, export)
    assert row["requests"] == "3"


def _event(tenant: uuid.UUID) -> UsageEventRow:
    return UsageEventRow(
        event_id=uuid.uuid4(),
        request_id="r",
        tenant_id=tenant,
        key_id=uuid.UUID(int=1),
        base_model=BASE,
        endpoint="completions",
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        outcome="completed",
        started_at=JULY,
        finished_at=JULY,
        payload_sha256=b"-",
    )


def _wait_for_lock(resources: Resources) -> None:
    """Until somebody waits for the lock on usage_events."""
    query = text("SELECT count(*) FROM pg_locks WHERE relation = 'usage_events'::regclass AND NOT granted")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with resources.engine.connect() as connection:
            if connection.scalar(query):
                return
    pytest.fail("the freeze did not wait for the insert in flight")


def test_the_same_job_twice_at_once(admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any) -> None:
    """BILL-03: two workers, one artefact."""
    add_event(tenant, JULY)
    export = ask(admin, tenant)
    for job in (tasks.freeze, tasks.render):
        threads = [threading.Thread(target=run, args=(resources, job, export["id"])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    run(resources, tasks.freeze, export["id"])
    with resources.sessions(scope=PLATFORM) as session:
        ready = session.scalars(select(AuditEntry).where(AuditEntry.action == "export.ready")).all()
        assert len(ready) == 1
        assert len(session.scalars(select(Export)).all()) == 1


class FailingStore:
    """Fails at the n-th write, once before and once after it happened."""

    def __init__(self, inner: BlobStore, fail_at: int, after: bool) -> None:
        self.inner, self.left, self.after = inner, fail_at, after

    def put(self, key: str, source: BinaryIO) -> int:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise BlobUnavailable("disk full")
        size = self.inner.put(key, source)
        if self.left == 0:
            raise BlobUnavailable("died right after")
        return size


@pytest.mark.parametrize("fail_at", [1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_dies_half_way(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any, fail_at: int, after: bool
) -> None:
    """BILL-03: killed between any two steps, the sweeper has it made again, with the same watermark."""
    add_event(tenant, JULY)
    export = ask(admin, tenant)
    run(resources, tasks.freeze, export["id"])
    add_event(tenant, JULY)  # after the freeze: not in this revision, whenever it is rendered
    failing = Resources(**resources.__dict__ | {"blobs": FailingStore(resources.blobs, fail_at, after)})
    with pytest.raises(BlobUnavailable):
        run(failing, tasks.render, export["id"])
    assert admin.get(f"/api/v1/tenants/{tenant}/exports/{export['id']}").json()["status"] == "pending"
    assert admin.get(f"/api/v1/tenants/{tenant}/exports/{export['id']}/file").status_code == 409

    run(resources, tasks.freeze, export["id"])
    run(resources, tasks.render, export["id"])
    (row,) = rows(admin, tenant, export)
    assert row["requests"] == "1"


def test_the_sweeper_finds_lost_exports(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, add_event: Any
) -> None:
    """BILL-03: a lost job is sent again; one that never ends is said to have failed, and can be asked for again."""
    add_event(tenant, JULY)
    lost = ask(admin, tenant)
    resources.redis.flushall()  # and with it the job
    assert _sweep(resources) == []
    _age(resources, lost["id"], tasks.RESEND_AFTER)
    assert _sweep(resources) == [("exports.freeze", uuid.UUID(lost["id"]))]

    _age(resources, lost["id"], tasks.GIVE_UP_AFTER)
    assert _sweep(resources) == []
    failed = admin.get(f"/api/v1/tenants/{tenant}/exports/{lost['id']}").json()
    assert failed["status"] == "failed"
    assert "Ask for it again" in failed["error"]
    again = make(admin, resources, tenant)
    assert (again["id"], again["revision"], again["error"]) == (lost["id"], 1, None)


def _age(resources: Resources, export_id: str, by: timedelta) -> None:
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        old = datetime.now(UTC) - by - timedelta(seconds=1)
        session.execute(update(Export).where(Export.id == uuid.UUID(export_id)).values(created_at=old))


def _sweep(resources: Resources) -> list[tuple[str, uuid.UUID]]:
    with transaction(resources, PLATFORM, "system") as work:
        tasks.sweep(work)
    return work._jobs


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"period": "2025-7"}, "period"),
        ({"period": "2025-07", "first_day": "2025-07-01", "last_day": "2025-07-02"}, None),
        ({"first_day": "2025-07-01"}, None),
        ({"first_day": "2025-07-02", "last_day": "2025-07-01"}, "first_day"),
        ({"first_day": "2025-07-01", "last_day": 1751328000}, "last_day"),
        ({"first_day": "2025-07-01T00:00", "last_day": "2025-07-02"}, "first_day"),
        ({"first_day": "0001-01-01", "last_day": "9999-12-31"}, "first_day"),
        ({"period": "2199-12"}, "period"),
        ({"period": "2025-07", "x": 1}, "x"),
    ],
)
def test_what_cannot_be_exported(admin: TestClient, tenant: uuid.UUID, body: Any, param: str | None) -> None:
    answer = admin.post(f"/api/v1/tenants/{tenant}/exports", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_the_zone_is_fixed_with_the_first_export(admin: TestClient, tenant: uuid.UUID) -> None:
    """BILL-04: a tenant's days are not cut in two ways."""
    assert admin.patch(f"/api/v1/tenants/{tenant}", json={"timezone": "UTC"}).json()["timezone"] == "UTC"
    ask(admin, tenant)
    answer = admin.patch(f"/api/v1/tenants/{tenant}", json={"timezone": "Asia/Tokyo"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, "timezone")
