"""What it costs to plan a step: `python bench/scheduler.py`.

Times `schedule`, `commit` and `retire` of decode steps, without a model, for 16 to 4,096 running requests over 64
adapters of 64 tenants, and shows that the cost grows linearly. A second table has 256 requests running and others
waiting behind them. The figures are medians over many steps, in CPU time of the one thread, so that other work on the
machine does not count. Prompts differ in length, so that in each step one sequence of 16 takes a new block and hashes a
full one.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from tenora_engine.kv.prefix_cache import CacheScope, PrefixCache
from tenora_engine.lora.slots import SlotTable
from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.scheduler import Limits, Pin, Scheduler
from tenora_engine.wire import AdapterUse, Sampling

NUM_ADAPTERS = 64
NUM_TENANTS = 64
BLOCK_SIZE = 16
PROMPT = 64  # tokens, and up to 15 more
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class LoadedAdapters:
    """All adapters lie in slots."""

    def __init__(self) -> None:
        self._table = SlotTable(NUM_ADAPTERS, worth=lambda _: 0.0)

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool, insist: bool = False) -> Pin:
        for use in uses:
            if self._table.find(use.digest) is None:
                self._table.place(use.digest, num_bytes=1)
            self._table.pin(use.digest)
        return Pin.PINNED

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None:
        for use in uses:
            self._table.unpin(use.digest)

    def invocation_of(self, digest: str) -> tuple[int, ...] | None:
        return None

    def drain_for(self, claims: Iterable[tuple[AdapterUse, ...]]) -> frozenset[str]:
        return frozenset()


def make_request(index: int) -> Request:
    adapters = (AdapterUse(f"{index % NUM_ADAPTERS:064x}"),)
    tenant = f"tenant-{index % NUM_TENANTS}"
    prompt = [(index * 7919 + position) % 50_000 for position in range(PROMPT + index % BLOCK_SIZE)]
    request = Request(
        key=RequestKey(b"gateway", f"request-{index}"),
        tenant=tenant,
        prompt=prompt,
        sampling=Sampling(max_tokens=100_000, seed=0),
        adapters=adapters,
        cache_root=CacheScope(tenant.encode(), "base", "bfloat16").root(),
        stop_token_ids=frozenset({2}),
        max_new_tokens=100_000,
    )
    request.sequences = [Sequence(request, 0, list(prompt))]
    return request


def step(scheduler: Scheduler, number: int) -> tuple[float, float]:
    """One step of `number` sequences; seconds in `schedule`, and in `commit` and `retire`."""
    begin = time.thread_time()
    plan = scheduler.schedule(now=float(number))
    planned = time.thread_time()
    for chunk in plan.chunks:
        scheduler.commit(chunk, (3 + number % 1000,) if chunk.samples else ())
    scheduler.retire(plan)
    return planned - begin, time.thread_time() - planned


def measure(num_running: int, num_waiting: int = 0, num_steps: int = 160) -> tuple[float, float, float]:
    """Milliseconds: median in `schedule`, median in `commit` and `retire`, slowest step of both."""
    num_blocks = num_running * (-(-(PROMPT + num_steps + 40) // BLOCK_SIZE) + 2)
    cache = PrefixCache(num_blocks, BLOCK_SIZE)
    limits = Limits(num_running, max_batch_tokens=num_running * 2 * PROMPT)  # all start in one step
    scheduler = Scheduler(limits, cache, LoadedAdapters())
    for index in range(num_running + num_waiting):
        scheduler.add(make_request(index))
    for number in range(20):
        step(scheduler, number)
    gc.collect()
    gc.freeze()
    times = [step(scheduler, number) for number in range(20, 20 + num_steps)]
    assert len(scheduler.running) == num_running
    schedule, commit = zip(*times, strict=True)
    return (
        1e3 * statistics.median(schedule),
        1e3 * statistics.median(commit),
        1e3 * max(map(sum, times)),
    )


def exponent(sizes: list[int], costs: list[float]) -> float:
    """Slope of the least-squares line through the logarithms: 1 is linear."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


def main() -> None:
    console = Console()
    table = Table("running", "schedule ms", "commit ms", "step ms", "us per sequence", "slowest ms")
    costs: list[float] = []
    for size in SIZES:
        schedule, commit, slowest = measure(size)
        costs.append(schedule + commit)
        table.add_row(
            *(f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in (size, schedule, commit)),
            f"{costs[-1]:.3f}",
            f"{1e3 * costs[-1] / size:.2f}",
            f"{slowest:.3f}",
        )
    console.print(table)
    console.print(f"cost ~ running ^ {exponent(list(SIZES), costs):.3f}")
    table = Table("running", "waiting", "schedule ms", "commit ms", "slowest ms")
    for waiting in (0, 64, 256, 1024):
        table.add_row("256", f"{waiting:,}", *(f"{value:.3f}" for value in measure(256, waiting)))
    console.print(table)


if __name__ == "__main__":
    main()
