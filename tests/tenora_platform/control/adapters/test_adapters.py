"""From upload to ready, refused, replaced and deleted, over HTTP and with the worker's own functions."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import blobs, check, ready, upload, url
from fastapi import Request
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from tenora_adapters.blobs import BlobUnavailable
from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters import tasks
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import Adapter, AdapterVersion, AuditEntry, BaseModelRow
from tenora_platform.db.session import PLATFORM


def test_from_upload_to_ready(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, heard: Callable[[], Change | None]
) -> None:
    answer = upload(admin, tenant, base_model="tiny")
    assert answer.status_code == 202, answer.text
    adapter, version = answer.json()["adapter"], answer.json()["version"]
    assert (adapter["model"], adapter["active_version"], adapter["versions_count"]) == ("tiny:bot", None, 1)
    assert (version["status"], version["number"]) == ("validating", 1)
    assert blobs(resources) == {
        f"adapters/{version['digest']}/{file}"
        for file in ("adapter_config.json", "adapter_model.safetensors", "manifest.json")
    }
    assert heard() is None, "not served yet, so no news yet"

    check(resources, version)
    assert heard() == Change(ChangeKind.ADAPTER, tenant)
    (listed,) = admin.get(url(tenant)).json()["items"]
    assert listed["active_version"]["id"] == listed["latest_version"]["id"] == version["id"]
    detail = admin.get(url(tenant, adapter["id"], "versions", version["id"])).json()
    assert detail["status"] == "ready"
    assert [module["rank"] for module in detail["report"]["modules"]] == [4, 4]
    assert all(module["delta_norm"] > 0 for module in detail["report"]["modules"])
    actions = [entry["action"] for entry in admin.get("/api/v1/audit").json()["items"]]
    assert actions == ["adapter.ready", "adapter.upload"]


def test_an_archive_is_the_same_adapter(admin: TestClient, tenant: uuid.UUID) -> None:
    two_files = upload(admin, tenant).json()["version"]
    packed = files.archive(
        ("bot/adapter_config.json", files.config()), ("bot/adapter_model.safetensors", files.weights())
    )
    zipped = upload(admin, tenant, [("files", ("bot.zip", packed))]).json()["version"]
    assert zipped["digest"] == two_files["digest"]
    assert (two_files["number"], zipped["number"]) == (1, 2)


def test_the_next_version_takes_over_when_it_is_ready(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, heard: Callable[[], Change | None]
) -> None:
    """ADP-16: until then the one before serves, and a version that is refused changes nothing."""
    first = ready(admin, resources, tenant, seed=1)
    heard()
    second = upload(admin, tenant, files.pair(seed=2)).json()["version"]
    assert admin.get(url(tenant, first["id"])).json()["active_version"]["number"] == 1
    poisoned = upload(admin, tenant, files.pair(seed=3, poison=float("nan"))).json()["version"]
    check(resources, poisoned)
    assert heard() is None
    assert admin.get(url(tenant, first["id"])).json()["active_version"]["number"] == 1

    check(resources, second)
    assert heard() == Change(ChangeKind.ADAPTER, tenant)
    detail = admin.get(url(tenant, first["id"])).json()
    assert detail["active_version"]["number"] == 2
    assert [(version["number"], version["status"]) for version in detail["versions"]] == [
        (3, "rejected"),
        (2, "ready"),
        (1, "ready"),
    ]


def test_a_check_that_ends_late_does_not_turn_back_time(
    admin: TestClient, resources: Resources, tenant: uuid.UUID
) -> None:
    first = upload(admin, tenant, files.pair(seed=1)).json()["version"]
    second = ready(admin, resources, tenant, seed=2)
    check(resources, first)
    detail = admin.get(url(tenant, second["id"])).json()
    assert (detail["versions"][1]["status"], detail["active_version"]["number"]) == ("ready", 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none(admin: TestClient, resources: Resources, tenant: uuid.UUID, value: float) -> None:
    """ADP-04: rejected by the worker, with the tensor's name; it never serves."""
    adapter = ready(admin, resources, tenant, poison=value)
    assert adapter["active_version"] is None
    (version,) = adapter["versions"]
    assert version["status"] == "rejected"
    (problem,) = version["report"]["problems"]
    assert problem["param"] == "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], "missing_file"),
        ([("files", ("adapter_config.json", files.config()))], "missing_file"),
        ([("files", ("adapter_model.bin", b"\x80\x04\x95abc"))], "pickle_refused"),
        ([("files", ("bot.zip", files.archive(("../../x", b"x"))))], "unsafe_name"),
        ([("files", ("bot.zip", b"PK\x03\x04 and then nothing"))], None),
        ([("files", ("adapter_config.json", b"{")), files.pair()[1]], "invalid_adapter_config"),
        ([("files", ("adapter_config.json", files.config(r=8))), files.pair()[1]], "wrong_shape"),
        (
            [("files", ("adapter_config.json", files.config(target_modules=["k_proj"]))), files.pair()[1]],
            "unexpected_tensors",
        ),
        ([files.pair()[0], ("files", ("adapter_model.safetensors", b"\x05\0\0\0\0\0\0\0{}"))], None),
    ],
)
def test_a_refused_upload_says_why_and_leaves_nothing(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, parts: Any, code: str | None
) -> None:
    """UPL-01, UPL-02, UPL-05, ADP-01, ADP-02: 400 with a report to act on; no row, no blob, no file."""
    answer = admin.post(url(tenant), files=[("name", (None, "bot")), *parts])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"]
    if code is not None:
        assert error["code"] == code
    (problem,) = error["report"]["problems"]
    assert (problem["code"], problem["message"], problem["param"]) == (error["code"], error["message"], error["param"])
    assert blobs(resources) == set()
    assert admin.get(url(tenant)).json()["items"] == []


@pytest.mark.parametrize(
    "name",
    [
        "a:b",
        "a/b",
        "../x",
        "..%2fx",
        "/etc",
        ".",
        "..",
        "",
        "a" * 300,
        "a" * 64,
        "a\0b",
        "😀",
        "-a",
        "A",
        "a b",
        "tiny",
        "a\n",
    ],
)
def test_names_that_are_none(admin: TestClient, resources: Resources, tenant: uuid.UUID, name: str) -> None:
    """ADP-14: an allow-list; a base model's own name is refused too."""
    answer = upload(admin, tenant, name=name)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name"), answer.text
    assert blobs(resources) == set()


def test_another_base_is_refused_and_never_opened(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, tmp_path: Path
) -> None:
    """ADP-13: an audit hook sees every open, import and resolved host of this process."""
    named = [str(tmp_path / "canary"), "https://canary.example/model", "canary/model"]
    seen: list[str] = []
    listening = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event.split(".")[0] in {"open", "os", "import", "subprocess", "socket"}:
            seen.append(f"{event} {arguments}")

    sys.addaudithook(hook)  # hooks stay: this one falls silent
    try:
        for name in named:
            error = upload(admin, tenant, files.pair(base=name)).json()["error"]
            assert (error["code"], error["param"]) == ("base_mismatch", "base_model_name_or_path")
            assert repr(name) in error["message"]
            assert "'tiny'" in error["message"]
    finally:
        listening = False
    assert any("adapter_config.json" in entry for entry in seen)
    assert [entry for entry in seen if "canary" in entry] == []
    assert blobs(resources) == set()

    (base,) = admin.get("/api/v1/base-models").json()["items"]
    accept = f"/api/v1/base-models/{base['id']}/accepted-names"
    admin.put(accept, json={"accepted_names": ["canary/model"]})
    try:
        accepted = upload(admin, tenant, files.pair(base="canary/model"))
        assert (accepted.status_code, accepted.json()["version"]["report"]["warnings"]) == (202, [])
    finally:
        admin.put(accept, json={"accepted_names": []})


@pytest.mark.parametrize("name", [None, ""])
def test_no_base_named_needs_a_confirmation(admin: TestClient, tenant: uuid.UUID, name: str | None) -> None:
    """ADP-13"""
    for fields in ({}, {"confirm_base": "false"}):
        assert upload(admin, tenant, files.pair(base=name), **fields).json()["error"]["code"] == "base_unconfirmed"
    assert upload(admin, tenant, files.pair(base=name), confirm_base="yes").json()["error"]["param"] == "confirm_base"
    assert upload(admin, tenant, files.pair(base="other"), confirm_base="true").status_code == 400
    accepted = upload(admin, tenant, files.pair(base=name), confirm_base="true")
    assert [note["code"] for note in accepted.json()["version"]["report"]["warnings"]] == ["base_confirmed"]


def test_a_name_is_needed(admin: TestClient, tenant: uuid.UUID) -> None:
    assert admin.post(url(tenant), files=files.pair()).json()["error"]["param"] == "name"
    assert upload(admin, tenant, owner="me").json()["error"]["param"] == "owner"
    assert upload(admin, tenant, [("other", ("a", b"x"))]).json()["error"]["param"] == "other"
    assert upload(admin, tenant, base_model="other").json()["error"]["param"] == "base_model"


def test_which_base_when_there_are_several(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        tiny = session.scalars(select(BaseModelRow)).one()
        other = BaseModelRow(name="org/Other:1", fingerprint="f", folder="/", context_length=1, spec=tiny.spec)
        session.add(other)
        elsewhere = tiny.spec | {"fingerprint": "f" * 64}
    try:
        assert upload(admin, tenant).json()["error"]["param"] == "base_model"
        answer = upload(admin, tenant, files.pair(base="org/Other:1"), base_model="org/Other:1")
        assert answer.json()["adapter"]["model"] == "org/Other:1:bot"
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.execute(update(BaseModelRow).where(BaseModelRow.id == other.id).values(spec=elsewhere))
        refused = upload(admin, tenant, files.pair(base="org/Other:1"), base_model="org/Other:1")
        assert refused.json()["error"]["code"] == "base_mismatch", "its files are another base's"
    finally:
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.execute(update(Adapter).values(active_version_id=None))
            for row in [*session.scalars(select(AdapterVersion)), *session.scalars(select(Adapter))]:
                session.delete(row)
                session.flush()
            session.delete(session.get_one(BaseModelRow, other.id))


def test_too_large_is_refused_while_it_comes(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UPL-04"""
    monkeypatch.setattr(resources.settings, "max_upload_bytes", 1000)

    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.zip"\r\n\r\n' + b"\0" * 2000
    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = admin.post(url(tenant), content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_strangers_upload_nothing(anonymous: TestClient, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before any of the body is read."""

    def read(*_: object) -> None:
        pytest.fail("the body was read")

    monkeypatch.setattr(Request, "stream", read)
    assert upload(anonymous, tenant).status_code == 401


def test_deleted_is_gone_and_the_name_is_free(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, heard: Callable[[], Change | None]
) -> None:
    """ADP-17: the row stays for the books."""
    first = ready(admin, resources, tenant)
    heard()
    assert admin.delete(url(tenant, first["id"])).status_code == 204
    assert heard() == Change(ChangeKind.ADAPTER, tenant)
    assert admin.get(url(tenant)).json()["items"] == []
    for path in (url(tenant, first["id"]), url(tenant, first["id"], "versions", first["versions"][0]["id"])):
        assert admin.get(path).status_code == 404
    assert admin.delete(url(tenant, first["id"])).status_code == 404

    again = ready(admin, resources, tenant)
    assert again["id"] != first["id"]
    assert again["active_version"]["number"] == 1
    with resources.sessions(scope=PLATFORM) as session:
        assert len(session.scalars(select(Adapter)).all()) == 2


def test_deleted_while_it_is_checked(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    answer = upload(admin, tenant).json()
    admin.delete(url(tenant, answer["adapter"]["id"]))
    check(resources, answer["version"])
    with resources.sessions(scope=PLATFORM) as session:
        assert session.scalars(select(Adapter)).one().active_version_id is None


def test_two_uploads_at_once_are_two_versions(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    answers: list[Any] = []
    uploads = [
        threading.Thread(target=lambda seed=seed: answers.append(upload(admin, tenant, files.pair(seed=seed))))
        for seed in range(4)
    ]
    for one in uploads:
        one.start()
    for one in uploads:
        one.join()
    assert [answer.status_code for answer in answers] == [202] * 4
    assert sorted(answer.json()["version"]["number"] for answer in answers) == [1, 2, 3, 4]
    assert len({answer.json()["adapter"]["id"] for answer in answers}) == 1


def test_the_same_check_twice_at_once(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    """BILL-03's rule for every task: it may run twice."""
    version = upload(admin, tenant).json()["version"]
    checks = [threading.Thread(target=check, args=(resources, version)) for _ in range(4)]
    for one in checks:
        one.start()
    for one in checks:
        one.join()
    check(resources, version)
    with resources.sessions(scope=PLATFORM) as session:
        done = session.scalars(select(AuditEntry).where(AuditEntry.action == "adapter.ready")).all()
        assert len(done) == 1


def test_what_was_stored_is_not_what_was_uploaded(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    """ADP-17: one flipped byte, or a file that is gone."""
    for damage in ("flip", "remove"):
        version = upload(admin, tenant, files.pair(seed=len(damage))).json()["version"]
        path = resources.blobs.root / f"adapters/{version['digest']}/adapter_model.safetensors"  # type: ignore[attr-defined]
        if damage == "remove":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        check(resources, version)
        with resources.sessions(scope=PLATFORM) as session:
            row = session.get_one(AdapterVersion, uuid.UUID(version["id"]))
            assert row.status == "rejected"
            assert row.report["problems"][0]["code"] == "damaged"


def test_a_store_that_is_away_rejects_nothing(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = upload(admin, tenant).json()["version"]

    def away(*_: object) -> None:
        raise BlobUnavailable("away")

    monkeypatch.setattr(type(resources.blobs), "open", away)
    with pytest.raises(BlobUnavailable):
        check(resources, version)
    monkeypatch.setattr(type(resources.blobs), "put", away)
    assert upload(admin, tenant, files.pair(seed=9)).status_code == 503
    with resources.sessions(scope=PLATFORM) as session:
        assert session.scalars(select(AdapterVersion)).one().status == "validating"


def test_the_sweeper_finds_lost_checks(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    version = upload(admin, tenant).json()["version"]
    resources.redis.flushall()  # and with it the job

    def sweep(age: timedelta) -> list[tuple[str, uuid.UUID]]:
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.execute(update(AdapterVersion).values(created_at=datetime.now(UTC) - age - timedelta(seconds=1)))
        with transaction(resources, PLATFORM, "system") as work:
            tasks.sweep(work)
        return work._jobs

    assert sweep(timedelta(0)) == []
    assert sweep(tasks.RESEND_AFTER) == [("adapters.validate", uuid.UUID(version["id"]))]
    assert sweep(tasks.GIVE_UP_AFTER) == []
    with resources.sessions(scope=PLATFORM) as session:
        row = session.scalars(select(AdapterVersion)).one()
        assert (row.status, row.report["problems"][0]["code"]) == ("rejected", "check_did_not_end")
