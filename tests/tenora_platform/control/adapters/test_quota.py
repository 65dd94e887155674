"""What a tenant's adapters may take up, one upload at a time and many at once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import adapter_files as files
import pytest
from adapter_calls import audit, blobs, check, ready, upload, url
from fastapi.testclient import TestClient

from tenora_platform.control.resources import Resources
from tenora_platform.db.models import Role

SIZE = len(files.weights())


def quota_url(tenant: uuid.UUID) -> str:
    return f"/api/v1/tenants/{tenant}/adapter-quota"


def limit(admin: TestClient, tenant: uuid.UUID, *, adapters: int | None = None, size: int | None = None) -> None:
    answer = admin.put(quota_url(tenant), json={"max_adapters": adapters, "max_bytes": size})
    assert answer.status_code == 200, answer.text


def used(client: TestClient, tenant: uuid.UUID) -> tuple[int, int]:
    quota = client.get(quota_url(tenant)).json()
    return quota["used_adapters"], quota["used_bytes"]


def refusal(answer: Any) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_nothing_is_limited_at_first(admin: TestClient, tenant: uuid.UUID) -> None:
    assert admin.get(quota_url(tenant)).json() == {
        "max_adapters": None,
        "max_bytes": None,
        "used_adapters": 0,
        "used_bytes": 0,
    }
    limit(admin, tenant, adapters=2, size=10**12)
    (entry,) = audit(admin, 1)
    assert (entry["action"], entry["detail"]) == ("adapter_quota.set", {"max_adapters": 2, "max_bytes": 10**12})


@pytest.mark.parametrize(
    "body",
    [
        {"max_adapters": -1, "max_bytes": None},
        {"max_adapters": 10**6 + 1, "max_bytes": None},
        {"max_adapters": None, "max_bytes": 10**15 + 1},
        {"max_adapters": "2", "max_bytes": None},
        {"max_adapters": 1},
    ],
)
def test_what_is_no_quota(admin: TestClient, tenant: uuid.UUID, body: dict[str, Any]) -> None:
    assert admin.put(quota_url(tenant), json=body).status_code == 400


def test_a_tenant_sees_its_own_and_sets_none(
    sign_in: Callable[[str], TestClient],
    make_user: Callable[..., None],
    make_tenant: Callable[..., uuid.UUID],
    tenant: uuid.UUID,
) -> None:
    make_user("boss", Role.TENANT_ADMIN, tenant)
    boss = sign_in("boss")
    assert boss.get(quota_url(tenant)).status_code == 200
    assert boss.put(quota_url(tenant), json={"max_adapters": 9, "max_bytes": None}).status_code == 403
    assert boss.get(quota_url(make_tenant("other"))).status_code == 404


def test_a_new_adapter_too_many(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    """A version of one that is there is none; deleting makes room."""
    first = ready(admin, resources, tenant)
    limit(admin, tenant, adapters=1)
    assert refusal(upload(admin, tenant, name="two")) == (409, "quota_exceeded", "max_adapters")
    assert upload(admin, tenant, files.pair(seed=2)).status_code == 202
    assert admin.delete(url(tenant, first["id"])).status_code == 204
    assert used(admin, tenant) == (0, 0)
    assert upload(admin, tenant, name="two").status_code == 202


def test_bytes_count_while_files_have_to_be_there(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    """Of what is validating, ready or retired; not of what is rejected or deleted."""
    bot = ready(admin, resources, tenant)
    limit(admin, tenant, size=2 * SIZE)
    rejected = upload(admin, tenant, files.pair(seed=2, poison=float("nan"))).json()["version"]
    assert used(admin, tenant) == (1, 2 * SIZE)
    before = blobs(resources)
    answer = upload(admin, tenant, files.pair(seed=3))
    assert refusal(answer) == (409, "quota_exceeded", "max_bytes")
    assert str(2 * SIZE) in answer.json()["error"]["message"]
    assert blobs(resources) == before, "nothing was stored for it"
    check(resources, rejected)
    assert used(admin, tenant) == (1, SIZE)
    ready(admin, resources, tenant, seed=3)
    old = url(tenant, bot["id"], "versions", bot["versions"][0]["id"])
    assert admin.post(f"{old}/retire").status_code == 200
    assert refusal(upload(admin, tenant, files.pair(seed=4))) == (409, "quota_exceeded", "max_bytes")
    assert admin.delete(old).status_code == 204
    assert upload(admin, tenant, files.pair(seed=4)).status_code == 202


def test_less_than_is_used_takes_nothing_away(admin: TestClient, resources: Resources, tenant: uuid.UUID) -> None:
    ready(admin, resources, tenant)
    limit(admin, tenant, adapters=0, size=0)
    assert used(admin, tenant) == (1, SIZE)
    assert refusal(upload(admin, tenant)) == (409, "quota_exceeded", "max_bytes")


def test_another_tenant_does_not_count(
    admin: TestClient, resources: Resources, tenant: uuid.UUID, make_tenant: Callable[..., uuid.UUID]
) -> None:
    ready(admin, resources, make_tenant("other"))
    limit(admin, tenant, adapters=1, size=SIZE)
    assert upload(admin, tenant).status_code == 202


def test_uploads_at_once_do_not_pass_the_limit(
    admin: TestClient, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are past the first look at the quota before one of them makes its version."""
    from tenora_platform.control.adapters import uploading

    together = threading.Barrier(6)
    publish = uploading.publish

    def gated(*arguments: Any) -> None:
        publish(*arguments)
        together.wait(20)

    monkeypatch.setattr(uploading, "publish", gated)
    limit(admin, tenant, adapters=3, size=2 * SIZE)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(upload(admin, tenant, files.pair(seed=n), name=f"bot{n}")))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [202, 202, 409, 409, 409, 409]
    assert used(admin, tenant) == (2, 2 * SIZE)
