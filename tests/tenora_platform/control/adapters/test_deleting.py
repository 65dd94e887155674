"""ADP-17, ADP-16: an adapter deleted, and its name made again, at every point in the life of a version.

What is held at a gate goes on after both have happened. Requests that are queued, loading or running are in
`gateway/test_versions.py` and `tests/tenora_engine/test_versions.py`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import blobs, check, ready, upload, url
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from tenora_platform.control.adapters import storing, tasks, uploading
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import AdapterBlobs, AdapterVersion
from tenora_platform.db.session import PLATFORM


class Gate:
    """Stops the first call of a function until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.reached, self._open, self._first = threading.Event(), threading.Event(), True
        self._real = getattr(module, name)
        monkeypatch.setattr(module, name, self._call)

    def _call(self, *arguments: Any, **given: Any) -> Any:
        if self._first:
            self._first = False
            self.reached.set()
            assert self._open.wait(30)
        return self._real(*arguments, **given)

    def pass_while(self, work: Callable[[], Any], meanwhile: Callable[[], Any]) -> Any:
        """What `work` returned, with `meanwhile` done once it stood at the gate."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
        try:
            assert self.reached.wait(30)
            meanwhile()
        finally:
            self._open.set()
            thread.join()
        return results[0]


def statuses(resources: Resources) -> list[str]:
    with resources.sessions(scope=PLATFORM) as session:
        return sorted(session.scalars(select(AdapterVersion.status)))


def collect_all(resources: Resources) -> None:
    """As if hours had passed."""
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(AdapterBlobs).values(noted_at=AdapterBlobs.noted_at - 2 * storing.KEEP_FOR))
        session.execute(update(AdapterVersion).values(ended_at=AdapterVersion.ended_at - 2 * storing.KEEP_FOR))
    for _ in range(2):
        with transaction(resources, PLATFORM, "system") as work:
            storing.collect(work)


@pytest.mark.parametrize(
    ("module", "function"),
    [(tasks, "read_manifest"), (tasks, "check_numbers"), (tasks, "_get_ready")],
    ids=["before its files are read", "while they are checked", "after that"],
)
@pytest.mark.parametrize("again", [1, 2], ids=["with the same files", "with others"])
def test_deleted_and_made_again_while_a_version_is_checked(
    admin: TestClient,
    resources: Resources,
    tenant: uuid.UUID,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    function: str,
    again: int,
) -> None:
    """The check of the old one says nothing about the new one, which serves; and its files stay."""
    first = upload(admin, tenant, files.pair(seed=1)).json()
    gate = Gate(monkeypatch, module, function)
    made: list[dict[str, Any]] = []

    def meanwhile() -> None:
        assert admin.delete(url(tenant, first["adapter"]["id"])).status_code == 204
        made.append(ready(admin, resources, tenant, seed=again))

    gate.pass_while(lambda: check(resources, first["version"]), meanwhile)
    assert statuses(resources) == ["deleted", "ready"]
    assert admin.get(url(tenant, first["adapter"]["id"])).status_code == 404
    (listed,) = admin.get(url(tenant)).json()["items"]
    assert (listed["id"], listed["active_version"]["number"]) == (made[0]["id"], 1)
    collect_all(resources)
    assert {key.split("/")[1] for key in blobs(resources)} == {listed["active_version"]["digest"]}


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "with its check begun and lost"])
def test_deleted_before_it_was_checked(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Its job comes all the same, and finds nothing to do."""
    first = upload(admin, tenant).json()
    if begun:

        def die(*_: object) -> None:
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(tasks, "check_numbers", die)
            with pytest.raises(RuntimeError):
                check(resources, first["version"])
    assert admin.delete(url(tenant, first["adapter"]["id"])).status_code == 204
    again = ready(admin, resources, tenant)
    check(resources, first["version"])
    assert statuses(resources) == ["deleted", "ready"]
    assert admin.get(url(tenant, again["id"])).json()["active_version"]["number"] == 1


@pytest.mark.parametrize(
    "function", ["publish", "_new_version"], ids=["before its files are stored", "before its version is made"]
)
def test_deleted_while_the_next_version_is_uploaded(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """The upload ends after the deletion: it is the first version of a new adapter of that name."""
    first = ready(admin, resources, tenant, seed=1)
    gate = Gate(monkeypatch, uploading, function)

    def meanwhile() -> None:
        assert admin.delete(url(tenant, first["id"])).status_code == 204
        collect_all(resources)

    answer = gate.pass_while(lambda: upload(admin, tenant, files.pair(seed=1)), meanwhile)
    assert answer.status_code == 202, answer.text
    check(resources, answer.json()["version"])
    (listed,) = admin.get(url(tenant)).json()["items"]
    assert listed["id"] != first["id"]
    assert (listed["active_version"]["number"], statuses(resources)) == (1, ["deleted", "ready"])
    assert len(blobs(resources)) == 3


def test_a_version_that_is_being_checked_is_not_deleted_alone(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot = ready(admin, resources, tenant, seed=1)
    version = upload(admin, tenant, files.pair(seed=2)).json()["version"]
    target = url(tenant, bot["id"], "versions", version["id"])
    answers: list[Any] = []
    gate = Gate(monkeypatch, tasks, "check_numbers")
    gate.pass_while(lambda: check(resources, version), lambda: answers.append(admin.delete(target)))
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (409, "wrong_state")
    assert statuses(resources) == ["ready", "ready"]
