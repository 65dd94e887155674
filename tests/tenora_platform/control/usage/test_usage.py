"""What a tenant used, over HTTP and in its own buckets."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

MIDNIGHT = datetime(2025, 7, 9, 22, tzinfo=UTC)  # 10 July in Berlin


@pytest.fixture
def tenant(make_tenant: Callable[..., uuid.UUID]) -> uuid.UUID:
    return make_tenant("acme", "Europe/Berlin")


def usage(admin: TestClient, tenant: uuid.UUID, **query: str) -> list[dict[str, Any]]:
    answer = admin.get(f"/api/v1/tenants/{tenant}/usage", params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_days_of_the_tenant(admin: TestClient, tenant: uuid.UUID, make_tenant: Any, add_event: Any) -> None:
    """BILL-04: the last microsecond of a day, and the first of the next."""
    add_event(tenant, MIDNIGHT - timedelta(microseconds=1))
    add_event(tenant, MIDNIGHT, adapter="bot", cached_tokens=4)
    add_event(tenant, MIDNIGHT + timedelta(hours=3), adapter="bot")
    add_event(tenant, MIDNIGHT + timedelta(days=1))  # not before `to`
    add_event(make_tenant("other"), MIDNIGHT)
    items = usage(admin, tenant, **{"from": "2025-07-09", "to": "2025-07-11", "bucket": "day"})
    counts = {"base_model": "tiny", "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 5, "requests": 1}
    assert items == [
        counts | {"bucket_start": "2025-07-09T00:00:00+02:00", "adapter": None},
        {
            "bucket_start": "2025-07-10T00:00:00+02:00",
            "base_model": "tiny",
            "adapter": "bot",
            "requests": 2,
            "prompt_tokens": 20,
            "cached_tokens": 4,
            "completion_tokens": 10,
        },
    ]


def test_hours_and_instants(admin: TestClient, tenant: uuid.UUID, add_event: Any) -> None:
    for minutes in (10, 50, 70):
        add_event(tenant, MIDNIGHT + timedelta(minutes=minutes))
    window = {"from": "2025-07-09T22:30:00Z", "to": "2025-07-10T02:00:00+02:00", "bucket": "hour"}
    items = usage(admin, tenant, **window)
    assert [(item["bucket_start"], item["requests"]) for item in items] == [
        ("2025-07-10T00:00:00+02:00", 1),
        ("2025-07-10T01:00:00+02:00", 1),
    ]


def test_without_a_window_it_is_the_latest(admin: TestClient, tenant: uuid.UUID, add_event: Any) -> None:
    add_event(tenant, datetime.now(UTC))
    assert [item["requests"] for item in usage(admin, tenant)] == [1]
    assert [item["requests"] for item in usage(admin, tenant, bucket="hour")] == [1]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "2025-07-09T00:00:00"}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"from": "9999-12-31", "to": "9999-12-31"}, "to"),
        ({"from": "0001-01-01"}, "from"),
        ({"from": "2025-07-09", "to": "2025-07-09"}, "from"),
        ({"from": "2025-01-01", "to": "2025-07-09", "bucket": "hour"}, "bucket"),
        ({"from": "2015-01-01", "to": "2025-07-09"}, "bucket"),
        ({"bucket": "week"}, "bucket"),
    ],
)
def test_windows_that_cannot_be(admin: TestClient, tenant: uuid.UUID, query: dict[str, str], param: str) -> None:
    answer = admin.get(f"/api/v1/tenants/{tenant}/usage", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
