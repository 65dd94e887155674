"""Flow 1, a chat, against the whole real platform through the stock OpenAI client."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import RunningPlatform, Tenant

BASE = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def ask(platform: RunningPlatform, tenant: Tenant, model: str, **options: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0, **options}
    return platform.openai(tenant).chat.completions.create(model=model, messages=QUESTION, **options)


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def booked(platform: RunningPlatform, tenant: Tenant, requests: int, within_s: float = 20.0) -> list[dict[str, Any]]:
    """The tenant's usage rows, as soon as they speak of so many requests."""
    deadline = time.monotonic() + within_s
    with platform.control() as control:
        while True:
            rows: list[dict[str, Any]] = control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"]
            if sum(row["requests"] for row in rows) >= requests or time.monotonic() > deadline:
                return rows
            time.sleep(0.1)


def first_refusal(
    platform: RunningPlatform, tenant: Tenant, kind: type[openai.APIStatusError], within_s: float
) -> openai.APIStatusError:
    """Ask until an answer is a refusal of this kind; it must come within so many seconds."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            ask(platform, tenant, BASE, max_tokens=1)
        except kind as refusal:
            return refusal
    pytest.fail(f"no {kind.__name__} in {within_s} s")


@pytest.fixture(scope="module")
def pirate(platform: RunningPlatform, examples: Path) -> tuple[Tenant, str]:
    """A tenant with the pirate adapter, and its model name."""
    tenant = platform.new_tenant()
    version = json.loads(
        platform.tenora(
            "adapter", "upload", str(examples / "pirate"), "-t", tenant.name, "-n", "pirate", "--json"
        ).stdout
    )
    return tenant, version["model"]


def test_an_adapter_changes_the_answer_and_the_books_agree(
    platform: RunningPlatform, pirate: tuple[Tenant, str]
) -> None:
    _, model = pirate
    tenant = pirate[0]
    before = sum(row["requests"] for row in booked(platform, tenant, 0))
    with ThreadPoolExecutor(2) as pool:
        base, adapted = pool.map(lambda name: ask(platform, tenant, name), [BASE, model])
    assert base.choices[0].message.content != adapted.choices[0].message.content
    assert base.system_fingerprint != adapted.system_fingerprint

    rows = booked(platform, tenant, before + 2)
    by_adapter = {row["adapter"]: row for row in rows}
    assert by_adapter["pirate"]["prompt_tokens"] == adapted.usage.prompt_tokens
    assert by_adapter["pirate"]["completion_tokens"] == adapted.usage.completion_tokens
    assert by_adapter[None]["completion_tokens"] == base.usage.completion_tokens


def test_a_stream_says_what_a_whole_answer_says(platform: RunningPlatform, pirate: tuple[Tenant, str]) -> None:
    tenant, model = pirate
    whole = ask(platform, tenant, model)
    chunks = list(ask(platform, tenant, model, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_another_tenants_adapter_is_exactly_as_absent_as_one_that_does_not_exist(
    platform: RunningPlatform, pirate: tuple[Tenant, str]
) -> None:
    """AUTH-06: B asks for A's adapter, then for one that nobody has; the answers are equal byte for byte."""
    _, model = pirate
    stranger = platform.new_tenant()
    headers = {"authorization": f"Bearer {stranger.key}"}

    def answer(name: str) -> tuple[int, bytes]:
        body = {"model": name, "messages": QUESTION, "max_tokens": 4}
        response = httpx.post(f"{platform.url}/v1/chat/completions", json=body, headers=headers)
        return response.status_code, response.content.replace(name.encode(), b"NAME")

    theirs, nobodys = answer(model), answer(f"{BASE}:piratf")
    assert theirs == nobodys
    assert theirs[0] == 404
    assert json.loads(theirs[1])["error"]["code"] == "model_not_found"
    assert model not in [m.id for m in platform.openai(stranger).models.list()]


def test_a_revoked_key_is_refused(platform: RunningPlatform) -> None:
    """AUTH-01: flow 4. Revoking reaches the gateway at once; the bound is the cache's, some seconds."""
    tenant = platform.new_tenant()
    assert ask(platform, tenant, BASE, max_tokens=1).choices
    with platform.control() as control:
        path = f"/tenants/{tenant.id}/keys"
        for key in control.items(path):
            control.delete(f"{path}/{key['id']}")
    first_refusal(platform, tenant, openai.AuthenticationError, within_s=5)


def test_a_quota_change_reaches_the_next_requests(platform: RunningPlatform) -> None:
    """Flow 4: a limit set through the control plane is kept by the gateway, and says when to come back."""
    tenant = platform.new_tenant()
    ask(platform, tenant, BASE, max_tokens=1)
    with platform.control() as control:
        control.put(f"/tenants/{tenant.id}/quota", json={"requests_per_minute": 2, "tokens_per_minute": None})
    refusal = first_refusal(platform, tenant, openai.RateLimitError, within_s=10)
    assert 0 < int(refusal.response.headers["retry-after"]) <= 61, "a bucket leaves the window whole"
    assert refusal.response.headers["x-ratelimit-limit-requests"] == "2"


def test_a_killed_engine_ends_the_stream_with_an_error_and_comes_back(platform: RunningPlatform) -> None:
    """ENG-04: kill -9 during a stream. One error event in OpenAI's shape, a restart, and exact books."""
    tenant = platform.new_tenant()
    engine = platform.part("engine")
    delivered, error = [], None
    headers = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": BASE, "messages": QUESTION, "max_tokens": 2000, "stream": True}
    with httpx.stream(
        "POST", f"{platform.url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                error = event["error"]
                continue
            delivered.append(event)
            if len(delivered) == 5:
                engine.kill()
    assert error is not None
    assert set(error) == {"message", "type", "param", "code"}
    assert len(delivered) >= 5

    assert ask(platform, tenant, BASE, max_tokens=2).choices, "the next request waits for the restarted engine"
    assert platform.part("engine").pid != engine.pid
    rows = booked(platform, tenant, 2)
    assert sum(row["requests"] for row in rows) == 2
    pieces = sum(bool(event["choices"] and event["choices"][0]["delta"].get("content")) for event in delivered)
    assert pieces <= sum(row["completion_tokens"] for row in rows) - 2 <= pieces + 8
