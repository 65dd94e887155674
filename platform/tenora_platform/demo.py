"""What `tenora demo` does: two tenants, an adapter each, both chatting at once through the stock OpenAI client.

It may run again on a platform that has the demo's tenants already: then it goes on from what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from openai import OpenAI

from tenora_platform.cli.adapters import upload_adapter
from tenora_platform.cli.client import ControlClient

QUESTION: Final = "What is the best way to learn to cook?"


@dataclass(frozen=True)
class DemoTenant:
    name: str
    display_name: str
    timezone: str
    adapter: str  # folder below examples/adapters, and its name


TENANTS: Final = (
    DemoTenant("blackbeard", "Blackbeard Tours", "Europe/Berlin", "pirate"),
    DemoTenant("structa", "Structa Data", "America/New_York", "json"),
)


class TenantAccess(msgspec.Struct, frozen=True):
    """What a script needs to go on as one tenant."""

    name: str
    id: str
    api_key: str
    models: list[str]  # its adapters' model names


class DemoFile(msgspec.Struct, frozen=True):
    """`demo.json` in the data folder, readable by its owner alone."""

    api: str
    control: str
    web: str
    base_model: str
    tenants: list[TenantAccess]
    admin_user: str
    admin_password: str


@dataclass(frozen=True)
class Answer:
    tenant: str
    model: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


def set_up_tenant(control: ControlClient, tenant: DemoTenant, adapters: Path) -> TenantAccess:
    """The tenant with its quota, a new key and its adapter, made as far as they are missing."""
    rows = {row["name"]: row for row in control.items("/tenants")}
    row = rows.get(tenant.name) or control.post(
        "/tenants",
        json={"name": tenant.name, "display_name": tenant.display_name, "timezone": tenant.timezone},
    )
    path = f"/tenants/{row['id']}"
    control.put(f"{path}/quota", json={"requests_per_minute": 600, "tokens_per_minute": 200_000})
    have = {a["name"]: a for a in control.items(f"{path}/adapters") if a["active_version"]}
    model = (
        have[tenant.adapter]["model"]
        if tenant.adapter in have
        else upload_adapter(control, adapters / tenant.adapter, row["id"], tenant.adapter)["model"]
    )
    key = control.post(f"{path}/keys", json={"name": f"demo {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"})
    return TenantAccess(name=tenant.name, id=row["id"], api_key=key["key"], models=[model])


def chat_at_once(
    api: str, base_model: str, tenants: list[TenantAccess], on_text: Callable[[str, str], None]
) -> list[Answer]:
    """Each tenant asks the base and its own adapter the same question; all four stream at the same time.

    `on_text(model, tenant)` is called at each piece of text, from the streaming threads.
    """
    jobs = [(tenant, model) for tenant in tenants for model in (base_model, *tenant.models)]
    start = threading.Barrier(len(jobs))

    def ask(tenant: TenantAccess, model: str) -> Answer:
        client = OpenAI(base_url=api, api_key=tenant.api_key, max_retries=0, timeout=120)
        start.wait()
        began = datetime.now(UTC)
        text, usage = "", None
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=64,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                on_text(model, tenant.name)
        assert usage is not None, "include_usage was asked for"
        seconds = (datetime.now(UTC) - began).total_seconds()
        return Answer(tenant.name, model, text.strip(), usage.prompt_tokens, usage.completion_tokens, seconds)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: ask(*job), jobs))
