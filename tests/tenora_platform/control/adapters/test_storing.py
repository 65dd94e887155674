"""Files that no version needs go; files that one needs stay, whoever does what meanwhile."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, BinaryIO

import adapter_files as files
import pytest
from adapter_calls import blobs, check, ready, upload, url
from fastapi.testclient import TestClient
from sqlalchemy import literal_column, select, text, update

from tenora_adapters.blobs import BlobStore, BlobUnavailable
from tenora_platform.control.adapters import storing, uploading
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import AdapterBlobs, AdapterVersion
from tenora_platform.db.session import PLATFORM


def collect(resources: Resources, times: int = 1) -> None:
    for _ in range(times):
        with transaction(resources, PLATFORM, "system") as work:
            storing.collect(work)


def age(resources: Resources, by: timedelta = storing.KEEP_FOR + timedelta(seconds=1)) -> None:
    """As if all that has happened had happened so much earlier."""
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(AdapterBlobs).values(noted_at=AdapterBlobs.noted_at - by))
        session.execute(update(AdapterVersion).values(ended_at=AdapterVersion.ended_at - by))


def notes(resources: Resources) -> set[str]:
    with resources.sessions(scope=PLATFORM) as session:
        return set(session.scalars(select(AdapterBlobs.digest)))


class Watched:
    """A store that says what is asked of it, in order, and fails once where it is told to."""

    def __init__(self, inner: BlobStore) -> None:
        self.inner, self.calls, self.fail_at = inner, list[tuple[str, str]](), ""

    def put(self, key: str, source: BinaryIO) -> int:
        self._note("put", key)
        return self.inner.put(key, source)

    def delete(self, key: str) -> None:
        self._note("delete", key)
        self.inner.delete(key)

    def open(self, key: str) -> BinaryIO:
        return self.inner.open(key)

    def keys(self, folder: str) -> list[str]:
        return self.inner.keys(folder)

    def sweep(self, before: datetime) -> int:
        if self.fail_at == "sweep":
            raise BlobUnavailable("disk full")
        return self.inner.sweep(before)

    def _note(self, call: str, key: str) -> None:
        file = key.rpartition("/")[2]
        if file == self.fail_at:
            self.fail_at = ""
            raise BlobUnavailable("disk full")
        self.calls.append((call, file))


@pytest.fixture
def watched(resources: Resources) -> Resources:
    return Resources(**resources.__dict__ | {"blobs": Watched(resources.blobs)})


@pytest.mark.parametrize("end", ["delete", "delete the version", "reject"])
def test_files_go_an_hour_after_their_last_version(
    admin: TestClient, resources: Resources, watched: Any, tenant: uuid.UUID, end: str
) -> None:
    """The manifest first: with it there, all is there."""
    if end == "reject":
        ready(admin, resources, tenant, poison=float("nan"))
    else:
        bot = ready(admin, resources, tenant, seed=1)
        if end == "delete":
            admin.delete(url(tenant, bot["id"]))
        else:
            ready(admin, resources, tenant, seed=2)
            kept = blobs(resources)
            admin.delete(url(tenant, bot["id"], "versions", bot["versions"][0]["id"]))
    collect(resources, times=3)
    assert len(blobs(resources)) == (6 if end == "delete the version" else 3), "requests in flight may need them yet"
    age(resources)
    collect(resources)
    collect(watched)
    assert watched.blobs.calls == [
        ("delete", "manifest.json"),
        ("delete", "adapter_config.json"),
        ("delete", "adapter_model.safetensors"),
    ]
    if end == "delete the version":
        assert len(blobs(resources)) == len(notes(resources)) * 3 == 3
        assert blobs(resources) < kept
    else:
        assert blobs(resources) == notes(resources) == set()


@pytest.mark.parametrize("retire", [False, True])
def test_what_a_version_has_stays(admin: TestClient, resources: Resources, tenant: uuid.UUID, retire: bool) -> None:
    bot = ready(admin, resources, tenant, seed=1)
    if retire:
        ready(admin, resources, tenant, seed=2)
        admin.post(url(tenant, bot["id"], "versions", bot["versions"][0]["id"], "retire"))
    upload(admin, tenant, files.pair(seed=3))  # and is being validated
    before = blobs(resources)
    age(resources)
    collect(resources, times=2)
    assert blobs(resources) == before


def test_files_of_two_tenants_are_one_and_stay_for_either(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, make_tenant: Callable[..., uuid.UUID]
) -> None:
    other = make_tenant("other")
    for owner in (tenant, other):
        bot = ready(admin, resources, owner)
        assert len(blobs(resources)) == 3
    admin.delete(url(other, bot["id"]))
    age(resources)
    collect(resources, times=2)
    assert len(blobs(resources)) == 3
    (left,) = admin.get(url(tenant)).json()["items"]
    admin.delete(url(tenant, left["id"]))
    age(resources)
    collect(resources, times=2)
    assert blobs(resources) == set()


def test_an_upload_that_came_to_nothing_leaves_nothing(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after it has published, and before it has made the version."""

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(uploading, "_new_version", die)
    assert upload(admin, tenant).status_code == 500
    assert len(blobs(resources)) == 3
    age(resources)
    collect(resources, times=2)
    assert blobs(resources) == notes(resources) == set()


def test_a_store_that_fails_half_way(admin: TestClient, resources: Resources, watched: Any, tenant: uuid.UUID) -> None:
    """What is left of it goes next time, and the same adapter can be uploaded again in between."""
    bot = ready(admin, resources, tenant)
    admin.delete(url(tenant, bot["id"]))
    age(resources)
    collect(resources)
    watched.blobs.fail_at = "adapter_config.json"
    collect(watched)
    assert len(blobs(resources)) == 2
    assert ready(admin, resources, tenant)["active_version"] is not None
    assert len(blobs(resources)) == 3
    age(resources)
    collect(resources, times=2)
    assert len(blobs(resources)) == 3


def test_an_upload_while_its_files_are_condemned_and_removed(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload stands still for hours, between its files and its version: it finds them gone, and writes them again.

    In between another upload of the same files has made a note of its own, and has not written them yet.
    """
    real = uploading.publish
    published = 0

    def gated(*arguments: Any) -> None:
        nonlocal published
        real(*arguments)
        published += 1
        if published == 1:
            age(resources)
            collect(resources, times=2)
            assert blobs(resources) == set()
            with transaction(resources, PLATFORM, "another") as work:
                storing.note_digest(work, arguments[1].manifest.digest)

    monkeypatch.setattr(uploading, "publish", gated)
    assert ready(admin, resources, tenant)["active_version"] is not None
    assert published == 2


def test_files_stay_while_their_version_is_being_made(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = uploading._new_version

    def gated(*arguments: Any, **given: Any) -> Any:
        age(resources)
        collect(resources, times=2)
        assert len(blobs(resources)) == 3
        return real(*arguments, **given)

    monkeypatch.setattr(uploading, "_new_version", gated)
    assert ready(admin, resources, tenant)["active_version"] is not None


def test_a_version_made_while_the_collector_looks(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its query saw none, and before it had the note's lock: the query is held in between, in the database."""
    bot = ready(admin, resources, tenant, seed=1)
    ready(admin, resources, tenant, seed=2)
    admin.delete(url(tenant, bot["id"], "versions", bot["versions"][0]["id"]))
    age(resources)
    digest = bot["versions"][0]["digest"]
    unneeded = storing._unneeded
    held = literal_column("(SELECT interval '0' FROM pg_sleep(1))")
    found: list[AdapterBlobs] = []

    def look() -> None:
        monkeypatch.setattr(storing, "KEEP_FOR", held)
        with transaction(resources, PLATFORM, "system") as work:
            found.extend(unneeded(work, AdapterBlobs.digest == digest))

    looking = threading.Thread(target=look)
    with transaction(resources, PLATFORM, "somebody") as work:
        assert storing.hold_note(work, digest, work.session.get_one(AdapterBlobs, digest).generation)
        version = work.session.get_one(AdapterVersion, uuid.UUID(bot["versions"][0]["id"]))
        version.status = "ready"
        looking.start()
        sleeping = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        with resources.sessions(scope=PLATFORM) as session:
            while looking.is_alive() and not session.scalar(sleeping):
                session.rollback()
    looking.join()
    assert found == []


def test_what_killed_processes_left_goes_after_a_day(
    admin: TestClient, resources: Resources, watched: Any, tenant: uuid.UUID
) -> None:
    """Not what is being written; and a sweep that fails stops nothing else."""
    bot = ready(admin, resources, tenant)
    whole = blobs(resources)
    root = resources.blobs.root  # type: ignore[attr-defined]
    now = time.time()
    for name, hours in {"adapters/.put-old": 25, "adapters/.put-new": 23}.items():
        (root / name).write_bytes(b"half")
        os.utime(root / name, (now, now - hours * 3600))
    collect(resources)
    assert blobs(resources) == {*whole, "adapters/.put-new"}
    admin.delete(url(tenant, bot["id"]))
    age(resources)
    for _ in range(2):
        watched.blobs.fail_at = "sweep"
        collect(watched)
    assert blobs(resources) == {"adapters/.put-new"}


def test_uploads_deletes_and_collectors_at_once(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time of grace at all, and one digest for all: what is checked is there, whole, every time."""
    monkeypatch.setattr(storing, "KEEP_FOR", timedelta(0))
    done, wrong = threading.Event(), list[str]()

    def comes_and_goes(name: str) -> None:
        for _ in range(5):
            answer = upload(admin, tenant, name=name)
            if answer.status_code != 202:
                wrong.append(answer.text)
                continue
            check(resources, answer.json()["version"])
            bot = url(tenant, answer.json()["adapter"]["id"])
            (version,) = admin.get(bot).json()["versions"]
            if version["status"] != "ready":
                wrong.append(str(version["report"]["problems"]))
            admin.delete(bot)

    def collects() -> None:
        while not done.wait(0.01):
            collect(resources)

    collectors = [threading.Thread(target=collects) for _ in range(2)]
    uploaders = [threading.Thread(target=comes_and_goes, args=(f"bot{n}",)) for n in range(3)]
    for thread in (*collectors, *uploaders):
        thread.start()
    for thread in uploaders:
        thread.join()
    done.set()
    for thread in collectors:
        thread.join()
    assert wrong == []
    collect(resources, times=2)
    assert blobs(resources) == notes(resources) == set()
