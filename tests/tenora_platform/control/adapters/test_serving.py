"""Promote, roll back, canary, retire, delete: what the name serves, one change at a time and many at once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import audit, check, ready, upload, url
from fastapi.testclient import TestClient
from sqlalchemy import select

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters import states
from tenora_platform.control.adapters.states import MOVES, move
from tenora_platform.control.errors import Conflict
from tenora_platform.control.resources import Resources
from tenora_platform.db.models import AdapterVersion, VersionStatus
from tenora_platform.db.session import PLATFORM

Shares = dict[int, int]  # version number -> per cent of the name's requests


@pytest.fixture
def bot(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> str:
    """An adapter with three ready versions, of which the third serves."""
    for seed in (1, 2, 3):
        detail = ready(admin, resources, tenant, seed=seed)
    return url(tenant, detail["id"])


def shares(detail: dict[str, Any]) -> Shares:
    return {v["number"]: v["share_percent"] for v in detail["versions"] if v["share_percent"]}


def statuses(detail: dict[str, Any]) -> dict[int, str]:
    return {v["number"]: v["status"] for v in detail["versions"]}


def version_url(admin: TestClient, bot: str, number: int) -> str:
    (found,) = (v["id"] for v in admin.get(bot).json()["versions"] if v["number"] == number)
    return f"{bot}/versions/{found}"


def test_promote_and_roll_back(
    admin: TestClient, tenant: uuid.UUID, bot: str, heard: Callable[[], Change | None]
) -> None:
    """Each is one audit row and one message, and a second roll back undoes the first."""
    assert shares(admin.get(bot).json()) == {3: 100}
    steps = [("promote", {"version": 1}, 1), ("roll-back", None, 3), ("roll-back", None, 1), ("roll-back", None, 3)]
    for step, body, serving in steps:
        detail = admin.post(f"{bot}/{step}", json=body).json()
        assert shares(detail) == {serving: 100}, step
        assert heard() == Change(ChangeKind.ADAPTER, tenant)
        assert heard() is None
    assert [(entry["action"], entry["detail"]["number"]) for entry in audit(admin, 4)] == [
        ("adapter.roll_back", 3),
        ("adapter.roll_back", 1),
        ("adapter.roll_back", 3),
        ("adapter.promote", 1),
    ]


def test_a_canary_grows_ends_and_takes_over(admin: TestClient, bot: str) -> None:
    for percent in (10, 50, 99):
        detail = admin.put(f"{bot}/canary", json={"version": 1, "percent": percent}).json()
        assert shares(detail) == {3: 100 - percent, 1: percent}
        assert (detail["active_version"]["number"], detail["canary_version"]["number"]) == (3, 1)
    assert shares(admin.post(f"{bot}/roll-back").json()) == {3: 100}, "the last step was the canary"
    admin.put(f"{bot}/canary", json={"version": 2, "percent": 1})
    assert shares(admin.delete(f"{bot}/canary").json()) == {3: 100}
    assert admin.delete(f"{bot}/canary").status_code == 200, "again changes nothing"
    admin.put(f"{bot}/canary", json={"version": 2, "percent": 30})
    assert shares(admin.post(f"{bot}/promote", json={"version": 2}).json()) == {2: 100}
    assert admin.get(bot).json()["previous_version"]["number"] == 3


@pytest.mark.parametrize(
    ("version", "percent", "status"),
    [(1, 0, 400), (1, 100, 400), (1, 2.5, 400), (1, "10", 400), (3, 10, 409), (4, 10, 404), (0, 10, 400)],
)
def test_what_is_no_canary(admin: TestClient, bot: str, version: int, percent: Any, status: int) -> None:
    assert admin.put(f"{bot}/canary", json={"version": version, "percent": percent}).status_code == status
    assert shares(admin.get(bot).json()) == {3: 100}


def test_an_upload_that_is_not_to_be_promoted_waits(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, bot: str, heard: Callable[[], Change | None]
) -> None:
    for fields in ({"promote": "false"}, {}):
        if not fields:
            admin.put(f"{bot}/canary", json={"version": 1, "percent": 10})
            heard()
        answer = upload(admin, tenant, files.pair(seed=9), **fields)
        check(resources, answer.json()["version"])
        assert heard() is None, "a canary that runs is not ended by an upload"
        assert 3 in shares(admin.get(bot).json())
    assert set(statuses(admin.get(bot).json()).values()) == {"ready"}
    assert upload(admin, tenant, promote="1").json()["error"]["param"] == "promote"


def test_retire_and_delete(admin: TestClient, tenant: uuid.UUID, bot: str, heard: Callable[[], Change | None]) -> None:
    for call in ("post", "delete"):
        target = version_url(admin, bot, 3) + ("/retire" if call == "post" else "")
        answer = getattr(admin, call)(target)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "serves_requests")
    admin.put(f"{bot}/canary", json={"version": 1, "percent": 10})
    assert admin.delete(version_url(admin, bot, 1)).status_code == 409, "a canary serves too"
    admin.delete(f"{bot}/canary")
    while heard() is not None:
        pass

    retired = admin.post(version_url(admin, bot, 2) + "/retire").json()
    assert statuses(retired) == {3: "ready", 2: "retired", 1: "ready"}
    assert retired["previous_version"] is None, "it was what a roll back would have served"
    assert heard() == Change(ChangeKind.ADAPTER, tenant)
    for path, body in (("promote", {"version": 2}), ("roll-back", None)):
        assert admin.post(f"{bot}/{path}", json=body).status_code == 409
    assert admin.post(version_url(admin, bot, 2) + "/retire").json()["error"]["code"] == "wrong_state"

    gone = version_url(admin, bot, 2)
    assert admin.delete(gone).status_code == 204
    assert heard() == Change(ChangeKind.ADAPTER, tenant)
    assert admin.get(gone).status_code == admin.delete(gone).status_code == 404
    detail = admin.get(bot).json()
    assert (statuses(detail), detail["versions_count"]) == ({3: "ready", 1: "ready"}, 2)
    assert admin.post(f"{bot}/promote", json={"version": 2}).status_code == 404


def test_a_number_is_never_given_twice(admin: TestClient, resources: Resources, tenant: uuid.UUID, bot: str) -> None:
    """`name@3` must not come to mean something else."""
    admin.post(f"{bot}/promote", json={"version": 1})
    assert admin.delete(version_url(admin, bot, 3)).status_code == 204
    assert upload(admin, tenant).json()["version"]["number"] == 4


def test_changes_of_one_adapter_take_turns(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, bot: str
) -> None:
    """Whatever the order: what serves is ready, and every change that was done is in the audit log."""
    urls = {number: version_url(admin, bot, number) for number in (1, 2, 3)}
    calls: list[Callable[[], Any]] = []
    for number in (1, 2, 3):
        calls += [
            lambda n=number: admin.post(f"{bot}/promote", json={"version": n}),
            lambda n=number: admin.put(f"{bot}/canary", json={"version": n, "percent": 20}),
            lambda n=number: admin.post(urls[n] + "/retire"),
        ]
    before = len(admin.get("/api/v1/audit").json()["items"])
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda c=call: answers.append(c())) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 409}
    done = sum(answer.status_code == 200 for answer in answers)
    assert len(admin.get("/api/v1/audit").json()["items"]) == before + done
    detail = admin.get(bot).json()
    assert sum(shares(detail).values()) == 100
    assert {statuses(detail)[number] for number in shares(detail)} == {"ready"}


def test_an_adapter_deleted_while_a_version_is_checked(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, bot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADP-17: with the check held at its gate; neither waits for the other, and nothing of it is served."""
    from tenora_platform.control.adapters import tasks

    at_gate, go_on = threading.Event(), threading.Event()
    real = tasks.check_numbers

    def gated(*arguments: Any) -> Any:
        at_gate.set()
        assert go_on.wait(20)
        return real(*arguments)

    monkeypatch.setattr(tasks, "check_numbers", gated)
    version = upload(admin, tenant, files.pair(seed=8)).json()["version"]
    checking = threading.Thread(target=check, args=(resources, version))
    checking.start()
    assert at_gate.wait(20)
    assert admin.delete(bot).status_code == 204
    go_on.set()
    checking.join()
    with resources.sessions(scope=PLATFORM) as session:
        rows = session.scalars(select(AdapterVersion)).all()
        assert {row.status for row in rows} == {"deleted"}
        assert all(row.ended_at for row in rows)


def test_every_move_that_is_not_in_the_table_is_refused() -> None:
    for status in VersionStatus:
        for to in VersionStatus:
            version = AdapterVersion(number=1, status=status)
            if to in MOVES[status]:
                move(version, to)
                assert version.status == to
            else:
                with pytest.raises(Conflict):
                    move(version, to)
                assert version.status == status
    assert not set(states.LIVE) & {VersionStatus.REJECTED, VersionStatus.DELETED}
