"""An hour of mixed traffic (`TENORA_SOAK_MINUTES` changes it): books equal to what clients were told, and no growth."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import RunningPlatform, Tenant

MINUTES = float(os.environ.get("TENORA_SOAK_MINUTES", "60"))
WARM_UP = 0.2  # of the time: caches fill, the KV cache's pages are touched for the first time


def resident_bytes(platform: RunningPlatform, part: str) -> int:
    process = platform.part(part)
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


def chat(platform: RunningPlatform, tenant: Tenant, models: list[str], seed: int) -> int:
    """One request of a random kind; the tokens that the client was told."""
    draw = random.Random(seed)
    answer = platform.openai(tenant).chat.completions.create(
        model=draw.choice(models),
        messages=[{"role": "user", "content": " ".join(str(draw.random()) for _ in range(draw.randint(1, 20)))}],
        max_tokens=draw.randint(1, 48),
        temperature=draw.choice([0.0, 1.0]),
        seed=seed,
        n=draw.choice([1, 1, 1, 2]),
    )
    assert answer.usage is not None
    return answer.usage.total_tokens


@pytest.mark.soak
def test_mixed_traffic_leaves_exact_books_and_no_growth(platform: RunningPlatform, examples: Path) -> None:
    tenant = platform.new_tenant()
    for name in ("pirate", "json"):
        platform.tenora("adapter", "upload", str(examples / name), "-t", tenant.name, "-n", name)
    models = ["smollm2-135m", "smollm2-135m:pirate", "smollm2-135m:json"]
    status = platform.status()
    end = time.monotonic() + MINUTES * 60
    measure_from = end - MINUTES * 60 * (1 - WARM_UP)
    told, seed, before = 0, 0, {}
    with ThreadPoolExecutor(8) as pool:
        while time.monotonic() < end:
            seeds = range(seed, seed + 32)
            told += sum(pool.map(lambda s: chat(platform, tenant, models, s), seeds))
            seed += 32
            if not before and time.monotonic() > measure_from:
                before = {part: resident_bytes(platform, part) for part in ("engine", "web", "worker")}
    after = {part: resident_bytes(platform, part) for part in before}

    def booked() -> int:
        with platform.control() as control:
            rows = control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"]
        return sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows)

    platform.until(lambda: booked() == told)
    assert platform.status() == status, "the same processes as at the beginning"
    # The engine's KV cache is allocated once, but its pages are counted when first written.
    grown = {part: (after[part] - before[part]) >> 20 for part in before if part != "engine"}
    assert max(grown.values()) < 64, f"MiB grown over {seed} requests: {grown}"
