"""Output tokens per second of the running demo: `make demo`, then `make bench`.

Drives N streams at once over the API named in `demo.json`, first all on the base, then spread over the demo's adapters,
and counts the completion tokens that the platform itself reports. The first round of each is a warm-up and not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tenora_platform.settings import settings

WORDS = ["river", "stone", "market", "lantern", "window", "harbour", "copper", "garden", "letter", "winter", "bridge"]


@dataclass(frozen=True)
class Target:
    key: str
    model: str


@dataclass(frozen=True)
class Round:
    """One round of all streams. Rates are over the wall clock from the common start to the last token."""

    output_tokens: int
    prompt_tokens: int
    seconds: float
    first_token_s: list[float]

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def prompt_of(words: int, salt: int) -> str:
    """About `words` words, different for every stream, so that no prefix is shared."""
    return f"Story {salt}: " + " ".join(WORDS[(salt * 7 + i * (1 + salt % 5)) % len(WORDS)] for i in range(words))


def run_round(api: str, targets: list[Target], prompt_words: int, output: int, seed: int) -> Round:
    """All targets stream at once; each asks for exactly `output` tokens or ends earlier at an end token."""
    ready = threading.Barrier(len(targets) + 1)

    def stream(index: int, target: Target) -> tuple[int, int, float, float]:
        client = OpenAI(base_url=api, api_key=target.key, max_retries=0, timeout=600)
        ready.wait()
        began = time.perf_counter()
        first = 0.0
        usage: Any = None
        chunks = client.completions.create(
            model=target.model,
            prompt=prompt_of(prompt_words, seed * 1000 + index),
            max_tokens=output,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in chunks:
            if chunk.choices and not first:
                first = time.perf_counter() - began
            usage = chunk.usage or usage
        return usage.completion_tokens, usage.prompt_tokens, first, time.perf_counter()

    with ThreadPoolExecutor(len(targets)) as pool:
        futures = [pool.submit(stream, index, target) for index, target in enumerate(targets)]
        ready.wait()
        began = time.perf_counter()
        done = [future.result() for future in futures]
    return Round(
        output_tokens=sum(d[0] for d in done),
        prompt_tokens=sum(d[1] for d in done),
        seconds=max(d[3] for d in done) - began,
        first_token_s=[d[2] for d in done],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=settings().home.expanduser() / "demo.json")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-words", type=int, default=100, help="about 128 tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    if not arguments.demo.exists():
        print(f"{arguments.demo} is not there; run `make demo` first", file=sys.stderr)
        return 1
    demo = json.loads(arguments.demo.read_text())
    tenants = demo["tenants"]
    base = [Target(tenants[i % len(tenants)]["api_key"], demo["base_model"]) for i in range(arguments.streams)]
    every = [Target(t["api_key"], model) for t in tenants for model in t["models"]]
    adapters = [every[i % len(every)] for i in range(arguments.streams)]

    console = Console()
    table = Table(
        "work", "streams", "output tokens/s (median)", "min", "max", "first token s (median)", "tokens a round"
    )
    figures = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Benchmark", total=2 * (arguments.rounds + 1))
        for name, targets in (("base", base), (f"{len(every)} adapters", adapters)):
            rounds = []
            for number in range(arguments.rounds + 1):
                rounds.append(run_round(demo["api"], targets, arguments.prompt_words, arguments.output, number))
                bar.advance(task)
            counted = rounds[1:]
            rates = [r.tokens_per_s for r in counted]
            first = statistics.median(s for r in counted for s in r.first_token_s)
            table.add_row(
                name,
                str(len(targets)),
                f"{statistics.median(rates):.1f}",
                f"{min(rates):.1f}",
                f"{max(rates):.1f}",
                f"{first:.2f}",
                f"{counted[0].prompt_tokens} in, {counted[0].output_tokens} out",
            )
            figures[name] = {"output_tokens_per_s": rates, "first_token_s_median": first}
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
