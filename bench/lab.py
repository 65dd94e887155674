"""Measuring a line of work: the same load for every server, and the median of several rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tenora_platform.bench.client import OpenAiClient
from tenora_platform.bench.load import Client
from tenora_platform.bench.options import Options
from tenora_platform.bench.report import Report
from tenora_platform.bench.run import clock, run
from tenora_platform.bench.targets import Targets
from tenora_platform.bench.trace import TraceLine

ROUNDS = 3
STREAMS = 16
PROMPT, OUTPUT = 128, 64  # tokens
PREFILLS = (512, 2048)
MIXED_RANKS = (8, 16, 32, 64) * 4


def loaded(streams: int = STREAMS, cycles: int = 1, model_weights: str = "uniform") -> Options:
    """Each stream asks once for warm-up, then `cycles` times. Streams that began together stay in step, so a window of
    whole cycles holds prompts and answers in their proportion, and one by the clock would not."""
    return Options(streams=streams, requests=cycles * streams, warmup=str(streams), model_weights=model_weights)


def single(prompt: int, requests: int, warmup: int = 0) -> Options:
    """One token of answer: the time of the first is that of the prompt."""
    return Options(streams=1, prompt=str(prompt), output="1", requests=requests, warmup=str(warmup))


Figure: TypeAlias = Callable[[Report], float]


class NothingAnswered(Exception):
    """A line has no figures."""


@dataclass
class Results:
    """Reports by line, one a round."""

    reports: dict[str, list[Report]] = field(default_factory=dict)

    def add(self, line: str, report: Report) -> None:
        """Raises NothingAnswered, with the errors. Answers that did not end in time have a throughput all the same."""
        figures = report.overall
        if not figures.completed and not figures.output_tokens_per_s:
            reasons = [*report.samples, f"{figures.unfinished} of {figures.requests} requests did not end in time"]
            raise NothingAnswered(f"{line}: {'; '.join(reasons)}")
        self.reports.setdefault(line, []).append(report)

    def median(self, line: str, of: Figure) -> float:
        """Over the rounds that have this figure; NaN where none has."""
        known = [value for value in map(of, self.reports[line]) if not math.isnan(value)]
        return statistics.median(known) if known else math.nan

    def ratio(self, line: str, other: str, of: Figure) -> float:
        """The median of the rounds' ratios: what else a machine does, it does to both lines of a round."""
        pairs = zip(self.reports[line], self.reports[other], strict=True)
        ratios = [of(mine) / of(others) if of(others) else math.nan for mine, others in pairs]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        return statistics.median(known) if known else math.nan

    @property
    def num_measured(self) -> int:
        return sum(map(len, self.reports.values()))

    def cached_tokens(self, line: str) -> int:
        return max(report.overall.cached_tokens for report in self.reports[line])

    def num_errors(self, line: str) -> int:
        return sum(sum(report.overall.errors.values()) for report in self.reports[line])

    @property
    def tainted(self) -> list[str]:
        """Lines in whose rounds the client was late itself."""
        return [line for line, reports in self.reports.items() if any(report.taints for report in reports)]

    def table(self) -> Table:
        columns = ("output tok/s", "TTFT p50 ms", "gap p50 ms", "gap p99 ms", "prefill tok/s", "errors")
        table = Table("work", *columns)
        for line, reports in self.reports.items():
            prompts_alone = reports[0].load["output"] == "1"
            answers = [
                f"{self.median(line, output_rate):,.1f}",
                _ms(self.median(line, ttft)),
                _ms(self.median(line, gap_p50)),
                _ms(self.median(line, gap_p99)),
                "",
            ]
            prompts = ["", _ms(self.median(line, ttft)), "", "", f"{self.median(line, prefill_rate):,.0f}"]
            table.add_row(line, *(prompts if prompts_alone else answers), str(self.num_errors(line)))
        return table


def output_rate(report: Report) -> float:
    """Tokens/s."""
    return report.overall.output_tokens_per_s


def gap_p50(report: Report) -> float:
    """Seconds; NaN where answers had one token, or none was completed."""
    return math.nan if report.overall.gap_s is None else report.overall.gap_s.p50


def gap_p99(report: Report) -> float:
    """As `gap_p50`."""
    return math.nan if report.overall.gap_s is None else report.overall.gap_s.p99


def ttft(report: Report) -> float:
    """Seconds; NaN where none was completed."""
    return math.nan if report.overall.ttft_s is None else report.overall.ttft_s.p50


def prefill_rate(report: Report) -> float:
    """Of single requests: a prompt's tokens by the time of the first token."""
    return report.overall.prompt_tokens / max(1, report.overall.completed) / ttft(report)


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:,.1f}"


class Lab:
    """Measures one line at a time; no two of the same results ask the same: only what is meant to be cached is."""

    def __init__(self, tokenizer: Path, results: Results, bar: Progress, num_lines: int) -> None:
        self._tokenizer = str(tokenizer)
        self._results = results
        self._bar = bar
        self._task = bar.add_task("", total=num_lines)

    async def over_http(self, line: str, asked: Options, targets: Targets, *, in_turn: bool = False) -> None:
        client = OpenAiClient(targets.api, asked.client_options(), clock)
        await self.measure(line, asked, targets, client, in_turn=in_turn)
        client.close()

    async def measure(
        self, line: str, asked: Options, targets: Targets, client: Client, *, in_turn: bool = False
    ) -> None:
        """`in_turn`: each request takes the next model, so that the streams together always have all of them.

        Raises NothingAnswered.
        """
        self._bar.update(self._task, description=line)
        seed = asked.seed or 1 + self._results.num_measured
        plan = msgspec.structs.replace(asked, tokenizer=self._tokenizer, seed=seed).plan(targets)
        turns = [
            TraceLine(PROMPT, OUTPUT, tenant=tenant.name, model=model)
            for tenant in targets.tenants
            for model in tenant.models
        ]
        workload = replace(plan.workload, trace=turns if in_turn else ())
        outcome = await run(replace(plan, workload=workload), client)
        self._results.add(line, outcome.report)
        self._bar.advance(self._task)


@dataclass(frozen=True)
class Verdict:
    """A ratio within one run, and the bar that it is held against."""

    what: str
    value: float  # NaN meets nothing
    bar: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def show(results: Results, verdicts: Sequence[Verdict], file: Path) -> None:
    """Tables to the terminal, everything to `file`."""
    ratios = Table("ratio", "value", "bar", "")
    for verdict in verdicts:
        bar = f"{'>=' if verdict.at_least else '<='} {verdict.bar:g}"
        ratios.add_row(verdict.what, f"{verdict.value:.2f}", bar, "met" if verdict.met else "[bold]not met[/]")
    out = Console()
    if not out.is_terminal:
        out = Console(width=120)
    out.print(results.table(), ratios)
    if results.tainted:
        late = "; ".join(results.tainted)
        out.print(f"[yellow]note[/] the client was late itself in a round of: {late}. The full reports say how")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode({"lines": results.reports, "verdicts": verdicts})))
    out.print(f"The full reports: {file}")
