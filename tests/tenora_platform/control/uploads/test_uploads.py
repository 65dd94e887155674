"""Uploads in chunks: resumed, cut off, at the wrong place, twice at once, given up, too many of them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import blobs, check, ready
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from tenora_adapters.blobs import BlobStore, BlobUnavailable
from tenora_platform.control.adapters import receiving
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import transaction
from tenora_platform.control.uploads import finishing, service, tasks
from tenora_platform.db.models import AdapterUpload, Role
from tenora_platform.db.session import PLATFORM


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def chunks(resources: Resources) -> set[str]:
    return {key for key in blobs(resources) if key.startswith("uploads/")}


def sweep(resources: Resources) -> None:
    with transaction(resources, PLATFORM, "system") as work:
        tasks.sweep(work)


def expire(resources: Resources, by: timedelta = timedelta(days=2)) -> None:
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(AdapterUpload).values(expires_at=AdapterUpload.expires_at - by))


def test_in_three_chunks(admin: TestClient, resources: Resources, tenant: uuid.UUID, new_upload: Any) -> None:
    """UPL-04: what lies in the store until the end is gone after it, and the version is the one of a plain upload."""
    upload = new_upload()
    created = upload.created.json()
    assert (upload.created.status_code, created["status"], created["offset"]) == (201, "receiving", 0)
    assert created["size"] == len(upload.data)
    third = len(upload.data) // 3
    for begin in (0, third, 2 * third):
        answer = upload.send(begin, begin + third if begin < 2 * third else None)
        assert answer.status_code == 200, answer.text
    assert upload.get().json() == answer.json()
    assert answer.json()["offset"] == len(upload.data)
    assert len(chunks(resources)) == 3

    finished = upload.finish()
    assert finished.status_code == 202, finished.text
    assert chunks(resources) == set()
    check(resources, finished.json()["version"])
    plain = ready(admin, resources, tenant)
    assert [version["number"] for version in plain["versions"]] == [2, 1]
    assert len({version["digest"] for version in plain["versions"]}) == 1
    shown = upload.get().json()
    assert (shown["status"], shown["version_id"]) == ("finished", finished.json()["version"]["id"])
    assert refusal(upload.send(len(upload.data), data=b"x")) == (409, "wrong_state")


def test_finishing_twice_makes_one_version(admin: TestClient, resources: Resources, new_upload: Any) -> None:
    """The answer to the first was lost on its way."""
    upload = new_upload()
    upload.send(0)
    first, again = upload.finish(), upload.finish()
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()


def test_an_archive_without_its_sha256(resources: Resources, new_upload: Any) -> None:
    packed = files.archive(("adapter_config.json", files.config()), ("adapter_model.safetensors", files.weights()))
    upload = new_upload([("bot.zip", packed)], files=[{"filename": "bot.zip", "size": len(packed)}])
    upload.send(0)
    assert upload.finish().status_code == 202


@pytest.mark.parametrize("begin", [0, 99, 101, 10**9])
def test_a_chunk_at_the_wrong_place(resources: Resources, new_upload: Any, begin: int) -> None:
    upload = new_upload()
    upload.send(0, 100)
    answer = upload.send(begin, data=b"x")
    assert refusal(answer) == (409, "wrong_offset")
    assert answer.headers["Upload-Offset"] == "100"
    assert (upload.get().json()["offset"], len(chunks(resources))) == (100, 1)


def test_chunks_that_are_none(new_upload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """UPL-04"""
    upload = new_upload()
    assert refusal(upload.send(0, data=upload.data + b"x")) == (413, "too_large")
    assert upload.client.patch(upload.url, content=b"x").json()["error"]["param"] == "upload-offset"
    for offset in ("-1", "x", "1.5"):
        assert upload.client.patch(upload.url, content=b"x", headers={"Upload-Offset": offset}).status_code == 400
    encoded = {"Upload-Offset": "0", "Content-Encoding": "gzip"}
    assert upload.client.patch(upload.url, content=b"x", headers=encoded).status_code == 400
    monkeypatch.setattr(service, "MAX_CHUNK_BYTES", 10)
    assert refusal(upload.send(0, 11)) == (413, "too_large")
    in_pieces = (upload.data[at : at + 4] for at in range(0, 40, 4))  # says no length beforehand
    assert refusal(upload.send(0, data=in_pieces)) == (413, "too_large")
    assert upload.get().json()["offset"] == 0
    monkeypatch.setattr(service, "MAX_CHUNKS", 2)
    assert [upload.send(at, at + 1).status_code for at in range(3)] == [200, 200, 409]


async def test_a_connection_that_is_cut(app: FastAPI, admin: TestClient, new_upload: Any) -> None:
    """What has arrived is kept, and the upload goes on from there."""
    upload = new_upload()
    messages = iter([{"type": "http.request", "body": upload.data[:70], "more_body": True}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(_message: Any) -> None:
        pass

    headers = {
        "host": "control",
        "cookie": f"tenora_session={admin.cookies['tenora_session']}",
        "x-tenora-request": "1",
        "upload-offset": "0",
        "content-length": str(len(upload.data)),
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "PATCH",
        "scheme": "http",
        "path": upload.url,
        "raw_path": upload.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    assert upload.get().json()["offset"] == 70
    assert await asyncio.to_thread(lambda: upload.send(70).status_code) == 200
    assert upload.finish().status_code == 202


def test_an_upload_that_is_refused_says_why_again(resources: Resources, new_upload: Any) -> None:
    """UPL-01: by its content, at the end; nothing of it is kept."""
    upload = new_upload([("adapter_model.bin", b"\x80\x04\x95abc")])
    upload.send(0)
    answer = upload.finish()
    assert refusal(answer) == (400, "pickle_refused")
    assert answer.json()["error"]["report"]["problems"]
    assert upload.finish().json() == answer.json()
    shown = upload.get().json()
    assert (shown["status"], shown["error"]) == ("refused", answer.json()["error"])
    assert refusal(upload.send(6, data=b"x")) == (409, "wrong_state")
    assert blobs(resources) == set()


def test_other_bytes_than_were_announced(resources: Resources, new_upload: Any) -> None:
    """A file that changed between two attempts must not become an adapter that nobody has."""
    upload = new_upload()
    upload.send(0, 300)
    upload.send(300, data=bytes(len(upload.data) - 300))
    answer = upload.finish()
    assert refusal(answer) == (400, "wrong_checksum")
    assert answer.json()["error"]["param"] in ("adapter_config.json", "adapter_model.safetensors")
    assert blobs(resources) == set()


def test_not_all_has_arrived(new_upload: Any) -> None:
    upload = new_upload()
    upload.send(0, -1)
    assert refusal(upload.finish()) == (409, "incomplete")
    upload.send(len(upload.data) - 1)
    assert upload.finish().status_code == 202


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"name": "../x"}, 400, "name"),
        ({"name": "tiny"}, 400, "name"),
        ({"base_model": "other"}, 400, "base_model"),
        ({"files": []}, 400, "files"),
        ({"files": [{"filename": "a.zip", "size": 1}] * 9}, 400, "files"),
        ({"files": [{"filename": "../a.zip", "size": 1}]}, 400, "files.0.filename"),
        ({"files": [{"filename": "a.zip", "size": 0}]}, 400, "files.0.size"),
        ({"files": [{"filename": "a.zip", "size": 1, "sha256": "ABC"}]}, 400, "files.0.sha256"),
        ({"files": [{"filename": "a.zip", "size": 2**40}]}, 413, None),
        ({"promote": "true"}, 400, "promote"),
        ({"owner": "me"}, 400, "owner"),
    ],
)
def test_what_is_no_upload(new_upload: Any, given: dict[str, Any], status: int, param: str | None) -> None:
    """ADP-14, UPL-02, UPL-04: before a byte is sent."""
    answer = new_upload(**given).created
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_a_full_tenant_learns_it_before_it_sends(admin: TestClient, tenant: uuid.UUID, new_upload: Any) -> None:
    """And one that gets full meanwhile may finish once there is room, without sending again."""
    quota, size = f"/api/v1/tenants/{tenant}/adapter-quota", len(files.weights())
    upload = new_upload()
    upload.send(0)
    admin.put(quota, json={"max_adapters": None, "max_bytes": size - 1})
    assert refusal(new_upload().created) == refusal(upload.finish()) == (409, "quota_exceeded")
    admin.put(quota, json={"max_adapters": None, "max_bytes": size})
    assert upload.finish().status_code == 202


def test_too_many_at_once(
    admin: TestClient,
    resources: Resources,
    new_upload: Any,
    make_tenant: Callable[..., uuid.UUID],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UPL-04: of a tenant, and of all. What has ended, or has expired, does not count."""
    monkeypatch.setattr(resources.settings, "max_uploads_per_tenant", 2)
    monkeypatch.setattr(resources.settings, "max_uploads", 3)
    ended, cancelled = new_upload(), new_upload()
    answer = new_upload().created
    assert refusal(answer) == (429, "too_many_uploads")
    assert answer.headers["Retry-After"]
    ended.send(0)
    ended.finish()
    assert cancelled.cancel().status_code == 204
    assert [new_upload().created.status_code for _ in range(3)] == [201, 201, 429]

    body = {"name": "bot", "files": [{"filename": "a.zip", "size": 1}]}
    others = [f"/api/v1/tenants/{make_tenant(name)}/uploads" for name in ("b", "c")]
    assert [admin.post(other, json=body).status_code for other in others] == [201, 429]
    expire(resources)
    assert admin.post(others[1], json=body).status_code == 201


def test_new_ones_at_once_do_not_pass_the_cap(
    resources: Resources, new_upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources.settings, "max_uploads_per_tenant", 3)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(new_upload().created.status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] * 3 + [429] * 5


def test_a_process_takes_in_only_so_much_at_once(
    tenant: uuid.UUID, new_upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "MAX_AT_ONCE_PER_TENANT", 1)
    upload = new_upload()
    with receiving.receiving(tenant):
        assert refusal(upload.send(0)) == (429, "too_many_uploads")
        plain = f"/api/v1/tenants/{tenant}/adapters"
        assert refusal(upload.client.post(plain, data={"name": "x"}, files=files.pair())) == (429, "too_many_uploads")
    assert upload.send(0).status_code == 200
    assert not receiving._now_receiving


def test_the_same_chunk_twice_at_once(resources: Resources, new_upload: Any) -> None:
    """A client that has given its connection up sends again while the server still reads from it."""
    upload = new_upload()
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(upload.send(0, 500).status_code)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 409, 409, 409]
    assert (upload.get().json()["offset"], len(chunks(resources))) == (500, 1)
    upload.send(500)
    assert upload.finish().status_code == 202


def test_finished_twice_at_once(resources: Resources, new_upload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is at it others are told so; what it leaves behind when it dies is another's to finish."""
    upload = new_upload()
    upload.send(0)
    real = finishing.make_version
    seen: list[Any] = []

    def gated(*arguments: Any, **given: Any) -> Any:
        seen.append((refusal(upload.finish()), refusal(upload.cancel()), upload.get().json()["status"]))
        monkeypatch.setattr(finishing, "make_version", real)
        raise BlobUnavailable("disk full")

    monkeypatch.setattr(finishing, "make_version", gated)
    assert upload.finish().status_code == 503
    assert seen == [((409, "busy"), (409, "busy"), "finishing")]
    assert upload.finish().status_code == 202


def test_a_finish_that_was_taken_for_dead(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, new_upload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up after another one has made the version: there is one version, not two."""
    upload = new_upload()
    upload.send(0)
    real = finishing.make_version

    def gated(*arguments: Any, **given: Any) -> Any:
        monkeypatch.setattr(finishing, "make_version", real)
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.execute(update(AdapterUpload).values(finishing_at=datetime.now(UTC) - service.FINISH_WITHIN))
        assert upload.finish().status_code == 202
        return real(*arguments, **given)

    monkeypatch.setattr(finishing, "make_version", gated)
    assert refusal(upload.finish()) == (409, "busy")
    assert upload.finish().status_code == 202
    (adapter,) = admin.get(f"/api/v1/tenants/{tenant}/adapters").json()["items"]
    assert adapter["versions_count"] == 1


def test_what_nobody_goes_on_with_is_dropped(resources: Resources, new_upload: Any) -> None:
    """UPL-04: the chunks, also one that was stored in vain, and then the row. A chunk puts it off."""
    upload, other = new_upload(), new_upload()
    upload.send(0, 100)
    resources.blobs.put(service.chunk_key(uuid.UUID(upload.created.json()["id"]), 1), _empty())
    expire(resources, timedelta(hours=23))
    sweep(resources)
    assert upload.send(100, 200).status_code == 200
    expire(resources, timedelta(hours=23))
    sweep(resources)
    assert (upload.get().status_code, other.get().status_code) == (200, 404)
    expire(resources, timedelta(hours=2))
    assert upload.get().status_code == upload.send(200, 300).status_code == 404, "before the sweeper comes"
    assert len(chunks(resources)) == 2
    sweep(resources)
    assert chunks(resources) == set()


def test_cancelled_is_gone(resources: Resources, new_upload: Any) -> None:
    upload = new_upload()
    upload.send(0, 100)
    assert upload.cancel().status_code == 204
    assert upload.get().status_code == upload.cancel().status_code == upload.finish().status_code == 404
    assert chunks(resources) == set()


def test_a_store_that_fails_loses_no_place(resources: Resources, new_upload: Any) -> None:
    upload = new_upload()
    upload.send(0, 100)

    class Full:
        def put(self, *_: object) -> int:
            raise BlobUnavailable("disk full")

    store: BlobStore = resources.blobs
    object.__setattr__(resources, "blobs", Full())
    try:
        assert upload.send(100, 200).status_code == 503
    finally:
        object.__setattr__(resources, "blobs", store)
    assert upload.get().json()["offset"] == 100
    assert upload.send(100).status_code == 200
    assert upload.finish().status_code == 202


def test_whose_it_is(
    admin: TestClient,
    sign_in: Callable[[str], TestClient],
    make_user: Callable[..., None],
    make_tenant: Callable[..., uuid.UUID],
    tenant: uuid.UUID,
    new_upload: Any,
) -> None:
    """AUTH-06: a viewer looks, another tenant sees nothing, and no tenant is told of another's upload."""
    upload = new_upload()
    make_user("viewer", Role.TENANT_VIEWER, tenant)
    other = make_tenant("other")
    make_user("stranger", Role.TENANT_ADMIN, other)
    viewer, stranger = sign_in("viewer"), sign_in("stranger")
    (listed,) = viewer.get(upload.collection).json()["items"]
    assert listed == upload.created.json()
    headers = {"Upload-Offset": "0"}
    elsewhere = upload.url.replace(str(tenant), str(other))
    for client, url, status in ((viewer, upload.url, 403), (stranger, upload.url, 404), (stranger, elsewhere, 404)):
        assert client.patch(url, content=b"x", headers=headers).status_code == status
        assert client.post(f"{url}/finish").status_code == status
        assert client.delete(url).status_code == status
    assert stranger.get(upload.url).status_code == stranger.get(elsewhere).status_code == 404
    assert upload.get().json()["offset"] == 0


def _empty() -> Any:
    import io

    return io.BytesIO(b"x")
