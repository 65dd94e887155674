"""Tenora beside its peers, on this machine, with the same client, weights and adapters:

    make bench-peers            (or bench/compare.py vllm, llama)

Peers are installed on the first run. Each is measured in turns with the whole platform over HTTP, three rounds; each
figure is the median of the rounds, each ratio the median of the rounds' ratios. The full reports go to
build/bench/peers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import (
    MIXED_RANKS,
    PREFILLS,
    ROUNDS,
    Lab,
    Results,
    Verdict,
    gap_p50,
    loaded,
    output_rate,
    prefill_rate,
    progress_bar,
    show,
    single,
)
from peers import llama_cpp, vllm_cpu
from platform_here import BASE, WORK, Platform, console, running_platform
from random_adapters import make_adapters
from rich.progress import Progress

from tenora_engine.prepare import find_embedded_gguf
from tenora_platform.bench.targets import Targets, TargetTenant
from tenora_platform.stack.ports import free_port

PEERS = WORK.parent / "peers"
OURS, VLLM, LLAMA = "tenora", f"vLLM {vllm_cpu.VERSION}", "llama.cpp"
BASE_16, BASE_1, ADAPTERS = "base, 16 streams", "base, 1 stream", "16 adapters of ranks 8 to 64"


@dataclass(frozen=True)
class Ours:
    base: Targets
    adapters: Targets


def beside(peer: str) -> str:
    """Our name in the rounds that a peer was measured in."""
    return f"{OURS} beside {peer}"


async def compare(peer: str, theirs: Targets, ours: Ours, model: Path, results: Results, bar: Progress) -> None:
    """The base at 16 streams and one, and prompts alone; or, of a peer with adapters, 16 streams over them all."""
    with_adapters = len(theirs.tenants[0].models) > 1
    lab = Lab(model, results, bar, 2 * ROUNDS * (1 if with_adapters else 2 + len(PREFILLS)))
    for _ in range(ROUNDS):
        for name, targets in ((beside(peer), ours.adapters if with_adapters else ours.base), (peer, theirs)):
            if with_adapters:
                await lab.over_http(f"{name}: {ADAPTERS}", loaded(), targets, in_turn=True)
                continue
            await lab.over_http(f"{name}: {BASE_16}", loaded(), targets)
            await lab.over_http(f"{name}: {BASE_1}", loaded(streams=1, cycles=3), targets)
            for tokens in PREFILLS:
                await lab.over_http(f"{name}: prefill, {tokens:,} tokens", single(tokens, requests=2), targets)


@contextmanager
def vllm(python: Path, model: Path, adapters: Sequence[Path]) -> Iterator[Targets]:
    """With adapters, LoRA is on and they are asked for; without, it is off."""
    names = {path.name: path for path in adapters}
    log = WORK / f"vllm-{'lora' if adapters else 'base'}.log"
    with (
        console.status(f"Starting {VLLM}"),
        vllm_cpu.running(python, model, BASE, free_port(), log, names) as url,
    ):
        yield Targets(url, [TargetTenant("-", list(names) or [BASE])], BASE)


@contextmanager
def llama(programs: Path) -> Iterator[Targets]:
    converted = llama_cpp.convert(programs, find_embedded_gguf(), WORK / "smollm2-135m-bf16.gguf")
    with llama_cpp.running(programs, converted, BASE, free_port(), WORK / "llama.log") as url:
        yield Targets(url, [TargetTenant("-", [BASE])], BASE)


def verdicts(results: Results) -> list[Verdict]:
    """Of the peers that were measured."""
    ratio, known = results.ratio, results.reports
    found = []
    for peer, work, bar in ((VLLM, BASE_16, 1.3), (VLLM, BASE_1, 1.5), (VLLM, ADAPTERS, 20.0)):
        ours, theirs = f"{beside(peer)}: {work}", f"{peer}: {work}"
        if theirs in known:
            found.append(Verdict(f"{OURS} : {peer}, {work}", ratio(ours, theirs, output_rate), bar))
    if f"{LLAMA}: {BASE_1}" in known:
        # Of gaps, the shorter is the better.
        decode = ratio(f"{LLAMA}: {BASE_1}", f"{beside(LLAMA)}: {BASE_1}", gap_p50)
        found.append(Verdict(f"{OURS} : {LLAMA}, decode rate of 1 stream", decode, 0.7))
    for tokens in PREFILLS:
        work = f"prefill, {tokens:,} tokens"
        if f"{VLLM}: {work}" in known:
            ratio_of_prefill = ratio(f"{beside(VLLM)}: {work}", f"{VLLM}: {work}", prefill_rate)
            found.append(Verdict(f"{OURS} : {VLLM}, {work}", ratio_of_prefill, 1.0))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=["vllm", "llama"], help="of vllm and llama; both")
    wanted = parser.parse_args().peers
    if unknown := set(wanted) - {"vllm", "llama"}:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    python = vllm_cpu.install(PEERS / "vllm-cpu") if "vllm" in wanted else None
    programs = llama_cpp.install(PEERS / "llama-cpp") if "llama" in wanted else None
    results = Results()

    def measure(peer: str, targets: Targets, ours: Ours, platform: Platform) -> None:
        with progress_bar(console) as bar:
            asyncio.run(compare(peer, targets, ours, platform.model, results, bar))

    with running_platform() as platform:
        with console.status("Making and uploading adapters"):
            adapters = make_adapters(platform.base, WORK / "adapters-mixed", MIXED_RANKS)
            base = platform.targets(["base-a", "base-b"])
            ours = Ours(base, platform.targets(["adapters-a", "adapters-b"], adapters))
        if python is not None:
            for chosen in ([], adapters):
                with vllm(python, platform.model, chosen) as targets:
                    measure(VLLM, targets, ours, platform)
        if programs is not None:
            with llama(programs) as targets:
                measure(LLAMA, targets, ours, platform)
    show(results, verdicts(results), WORK / "peers.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
