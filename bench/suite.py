"""What the engine and the platform do on this machine, in minutes:

    make bench

Starts a platform of its own and measures its engine alone over the wire, and the whole platform over HTTP, in turns and
with the same load, three rounds. Each figure is the median of the rounds, each ratio the median of the rounds' ratios.
The full reports go to build/bench/suite.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import msgspec
from engine_alone import EngineClient
from lab import (
    MIXED_RANKS,
    PREFILLS,
    ROUNDS,
    STREAMS,
    Lab,
    Results,
    Verdict,
    gap_p99,
    loaded,
    output_rate,
    progress_bar,
    show,
    single,
    ttft,
)
from platform_here import BASE, WORK, Platform, console, running_platform
from random_adapters import make_adapters, store_adapters
from rich.progress import Progress

from tenora_platform.bench.options import Options
from tenora_platform.bench.prompts import SharedBy
from tenora_platform.bench.targets import Targets, TargetTenant

NUM_REGISTERED = 200
CACHED_PROMPT = 1024  # tokens

BASE_16, BASE_1, PLATFORM_16 = "base, 16 streams", "base, 1 stream", "base, 16 streams, whole platform"
MIXED_16, RANK8_16 = "16 adapters of ranks 8 to 64", "16 adapters of rank 8"
ZIPF = f"{NUM_REGISTERED} adapters of rank 8, Zipf 1.0"
COLD, AGAIN, STRANGER = "1,024 tokens, cold", "1,024 tokens, again", "1,024 tokens, another tenant"
NUM_LINES = ROUNDS * (9 + len(PREFILLS))


def asking(models: Sequence[str]) -> Targets:
    """Of the engine alone, which knows adapters by their digests."""
    return Targets("", [TargetTenant("a", list(models))], BASE)


def the_same(asked: Options, number: int) -> Options:
    """One prompt for all requests of all tenants; another for each number."""
    return msgspec.structs.replace(asked, shared_prefix=1.0, shared_by=SharedBy.ALL, seed=1_000_000 + number)


async def measure(platform: Platform, mixed: list[str], rank8: list[str], tenants: Targets, bar: Progress) -> Results:
    """Digests of adapters in, `NUM_LINES` measurements out. Raises NothingAnswered."""
    results = Results()
    lab = Lab(platform.model, results, bar, NUM_LINES)
    base, one, other = asking([BASE]), *(msgspec.structs.replace(tenants, tenants=[t]) for t in tenants.tenants)
    async with EngineClient(platform.engine_address, BASE) as engine:
        for number in range(ROUNDS):
            await lab.measure(BASE_16, loaded(), base, engine)
            await lab.over_http(PLATFORM_16, loaded(), tenants)
            await lab.measure(MIXED_16, loaded(), asking(mixed), engine, in_turn=True)
            await lab.measure(RANK8_16, loaded(), asking(rank8[:STREAMS]), engine, in_turn=True)
            await lab.measure(ZIPF, loaded(cycles=2, model_weights="zipf:1.0"), asking(rank8), engine)
            await lab.measure(BASE_1, loaded(streams=1, cycles=3), base, engine)
            for tokens in PREFILLS:
                await lab.measure(f"prefill, {tokens:,} tokens", single(tokens, requests=2), base, engine)
            await lab.over_http(COLD, single(CACHED_PROMPT, requests=2), one)
            await lab.over_http(AGAIN, the_same(single(CACHED_PROMPT, requests=3, warmup=1), number), one)
            await lab.over_http(STRANGER, the_same(single(CACHED_PROMPT, requests=1), number), other)
    return results


def verdicts(results: Results) -> list[Verdict]:
    ratio = results.ratio
    stranger = results.cached_tokens(STRANGER)
    return [
        Verdict("mixed adapters : base, output tokens/s", ratio(MIXED_16, BASE_16, output_rate), 0.60),
        Verdict("rank-8 adapters : base, output tokens/s", ratio(RANK8_16, BASE_16, output_rate), 0.85),
        Verdict("200 adapters : 16 adapters, output tokens/s", ratio(ZIPF, RANK8_16, output_rate), 0.80),
        Verdict("200 adapters : 16 adapters, p99 gap", ratio(ZIPF, RANK8_16, gap_p99), 1.5, at_least=False),
        Verdict("repeated prompt : cold, first token", ratio(AGAIN, COLD, ttft), 0.15, at_least=False),
        Verdict("tokens of another tenant's prompt found in the cache", stranger, 0, at_least=False),
        Verdict("whole platform : engine alone, output tokens/s", ratio(PLATFORM_16, BASE_16, output_rate), 0.90),
    ]


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with running_platform() as platform:
        with console.status("Making adapters"):
            mixed = make_adapters(platform.base, WORK / "adapters-mixed", MIXED_RANKS)
            rank8 = make_adapters(platform.base, WORK / "adapters-8", [8] * NUM_REGISTERED)
            digests = store_adapters(platform.base, platform.blobs, [*mixed, *rank8])
        tenants = platform.targets(["bench-a", "bench-b"])
        with progress_bar(console) as bar:
            split = len(mixed)
            results = asyncio.run(measure(platform, digests[:split], digests[split:], tenants, bar))
    show(results, verdicts(results), WORK / "suite.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
