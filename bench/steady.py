"""What should cost next to nothing: a start, an adapter on disk, and adapters that come and go beside running streams.

    python bench/steady.py

On the engine alone, and for the start on the whole platform too. The model is prepared before, and adapters' files are
in the machine's page cache. That memory does not grow is proved by tests/tenora_engine/test_growth.py and, on the whole
platform, tests/flows/test_soak.py. The full reports go to build/bench/steady.json.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from random import Random

from engine_alone import EngineClient
from lab import ROUNDS, Lab, Results, Verdict, gap_p99, loaded, progress_bar, show
from platform_here import BASE, WORK, Platform, console, prepared_model, running_platform
from random_adapters import make_adapters, store_adapters
from rich.progress import Progress

from tenora_platform.bench.client import OpenAiClient
from tenora_platform.bench.load import Client
from tenora_platform.bench.options import Options
from tenora_platform.bench.record import Record
from tenora_platform.bench.run import clock
from tenora_platform.bench.targets import Targets, TargetTenant
from tenora_platform.bench.workload import Call

NUM_ADAPTERS = 200  # of rank 8 over all linear layers, about 5 MB each; an engine keeps 64 in memory
NUM_LOADS = 20
STREAMS = 8  # on the base, while one more stream asks for adapters
QUIET, CHURN = f"{STREAMS} streams beside one adapter", f"{STREAMS} streams beside adapters that come and go"


@contextmanager
def engine_process(model: Path, folder: Path) -> Iterator[str]:
    """The address of an engine that is starting."""
    address = f"ipc://{folder}/engine.sock"
    command = [sys.executable, "-m", "tenora_engine", "serve", "--listen", address, "--model", str(model)]
    command += ["--blobs", f"file://{folder}/blobs"]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield address
        finally:
            process.kill()
            process.wait()


async def first_token(client: Client, call: Call) -> float:
    """Seconds from now. Raises RuntimeError when the request fails."""
    now = clock()
    record = Record(call.tenant, call.model, intended=now, sent=now)
    await client.send(call, record)
    if record.first is None or record.failure is not None:
        raise RuntimeError(f"no answer: {record.failure}")
    return record.first - now


async def start_engine(model: Path) -> float:
    """Seconds from the start of its process to its first token."""
    with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        began = time.monotonic()
        with engine_process(model, Path(folder)) as address:
            async with EngineClient(address, BASE) as engine:
                await first_token(engine, asking(BASE))
                return time.monotonic() - began


def asking(model: str, seed: int = 0) -> Call:
    return Call("a", model, Random(seed).choices(range(1000, 40_000), k=16), 1)


async def loads(engine: EngineClient, digests: Sequence[str]) -> list[float]:
    """Seconds by which a first token is later when the adapter lies on disk."""
    seeds = count(1)
    found = []
    for digest in digests:
        on_disk = await first_token(engine, asking(digest, next(seeds)))
        resident = [await first_token(engine, asking(digest, next(seeds))) for _ in range(3)]
        found.append(on_disk - statistics.median(resident))
    return found


async def beside(lab: Lab, line: str, engine: EngineClient, digests: Sequence[str]) -> None:
    """Streams on the base, while another asks for one of the adapters after the other."""

    async def ask_for_adapters() -> None:
        for seed, digest in zip(count(), cycle(digests), strict=False):
            await first_token(engine, asking(digest, seed))

    others = asyncio.create_task(ask_for_adapters())
    try:
        await lab.measure(line, loaded(streams=STREAMS), Targets("", [TargetTenant("a", [BASE])], BASE), engine)
    finally:
        others.cancel()


async def measure_engine(platform: Platform, digests: Sequence[str], results: Results, bar: Progress) -> list[float]:
    """`loads`, and in `results` streams with and without adapters that come and go."""
    lab = Lab(platform.model, results, bar, 2 * ROUNDS)
    async with EngineClient(platform.engine_address, BASE) as engine:
        found = await loads(engine, digests[:NUM_LOADS])
        for _ in range(ROUNDS):
            await beside(lab, QUIET, engine, digests[:1])
            await beside(lab, CHURN, engine, digests)
    return found


async def ask_platform(targets: Targets) -> None:
    client = OpenAiClient(targets.api, Options().client_options(), clock)
    tenant = targets.tenants[0]
    await first_token(client, Call(tenant.name, BASE, "Hello", 1, key=tenant.api_key))
    client.close()


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    model = prepared_model()
    with console.status("Starting engines"):
        starts = [asyncio.run(start_engine(model)) for _ in range(ROUNDS)]
    began = time.monotonic()
    with running_platform() as platform:
        asyncio.run(ask_platform(platform.targets(["a"])))
        platform_start = time.monotonic() - began
        with console.status("Making adapters"):
            adapters = make_adapters(platform.base, WORK / "adapters-8", [8] * NUM_ADAPTERS)
            digests = store_adapters(platform.base, platform.blobs, adapters)
        results = Results()
        with progress_bar(console) as bar:
            load_s = asyncio.run(measure_engine(platform, digests, results, bar))
    churn = results.ratio(CHURN, QUIET, gap_p99)
    verdicts = [
        Verdict("engine's start to its first token, s", statistics.median(starts), 10.0, at_least=False),
        Verdict("platform's start to its first token, new data folder, s", platform_start, 10.0, at_least=False),
        Verdict("adapter of 5 MB from disk, ms", 1e3 * statistics.median(load_s), 50.0, at_least=False),
        Verdict("adapters that come and go : one, p99 gap of others", churn, 1.2, at_least=False),
    ]
    show(results, verdicts, WORK / "steady.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
