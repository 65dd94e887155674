"""A run as a document (JSON) and as tables for a terminal."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tenora_platform.bench.lag import ClientLag, taints
from tenora_platform.bench.load import Observed
from tenora_platform.bench.metrics import Figures, Slo, Spread, by_model, by_tenant, figures

_MAX_GROUPS: Final = 20
_MIN_ANSWERS: Final = 3  # one after another, that a window by the clock should hold


class Report(msgspec.Struct, frozen=True):
    """One run. Times are in seconds; `load` is what was asked for, without keys."""

    version: str
    at: datetime
    load: dict[str, Any]
    window_s: float
    slo: Slo
    overall: Figures
    tenants: dict[str, Figures]
    models: dict[str, Figures]
    client: ClientLag
    taints: list[str]  # where the client, and not the server, may be what was measured
    samples: list[str]  # of each kind of error, one message

    @property
    def remarks(self) -> list[str]:
        found = [*self.taints, *self.overall.notes, *self.samples]
        e2e = self.overall.e2e_s
        if self.load.get("requests") is None and e2e is not None and self.window_s < _MIN_ANSWERS * e2e.p50:
            found.append(
                f"the window is shorter than {_MIN_ANSWERS} answers: its rates depend on where it fell. "
                "Use a longer --duration, or --requests"
            )
        return found


class Trial(msgspec.Struct, frozen=True):
    rate: float  # requests per second, asked for
    met: bool
    report: Report


class SweepReport(msgspec.Struct, frozen=True):
    """`best` is the highest rate that met the SLO; None when none did. `converged`: no much higher one does."""

    best: float | None
    converged: bool
    slo_share: float  # of the requests had to meet the SLO
    trials: list[Trial]


def make_report(observed: Observed, client: ClientLag, slo: Slo, load: dict[str, Any]) -> Report:
    records, window = observed.records, observed.window
    overall = figures(records, window, slo)
    samples = {
        r.failure.kind: f"{r.failure.kind}: {r.failure.message}"
        for r in observed.measured
        if r.failure is not None and r.failure.message
    }
    return Report(
        version=importlib.metadata.version("tenora"),
        at=datetime.now(UTC),
        load=load,
        window_s=window.seconds,
        slo=slo,
        overall=overall,
        tenants=by_tenant(records, window, slo),
        models=by_model(records, window, slo),
        client=client,
        taints=taints(client, ttft=overall.ttft_s, gap=overall.gap_s),
        samples=[samples[kind] for kind in sorted(samples)],
    )


def show(report: Report) -> RenderableType:
    """Tables: rates, latencies, and the same by tenant and by model where there are several."""
    parts: list[RenderableType] = [_rates(report), _latencies(report.overall)]
    for title, groups in (("tenant", report.tenants), ("model", report.models)):
        if len(groups) > 1:
            parts.append(_groups(title, groups))
    parts += [f"[yellow]note[/] {escape(remark)}" for remark in report.remarks]
    return Group(*parts)


def show_sweep(sweep: SweepReport) -> RenderableType:
    """A row per rate, and the answer."""
    rows = [
        (
            f"{trial.rate:.2f}",
            "yes" if trial.met else "no",
            f"{trial.report.overall.slo_share or 0:.1%}",
            _rate(trial.report.overall.goodput_per_s),
            _rate(trial.report.overall.output_tokens_per_s),
            _ms(trial.report.overall.ttft_s, "p99"),
            _ms(trial.report.overall.tpot_s, "p99"),
            "tainted" if trial.report.taints else "ok",
        )
        for trial in sorted(sweep.trials, key=lambda trial: trial.rate)
    ]
    columns = ("requests/s", "met", "share", "goodput/s", "out tok/s", "TTFT p99 ms", "TPOT p99 ms", "client")
    parts: list[RenderableType] = [_table(columns, rows)]
    if any(trial.report.taints for trial in sweep.trials):
        parts.append("[yellow]note[/] where it says tainted, the client was late itself: the JSON report says how")
    best = "No rate that was tried met the SLO" if sweep.best is None else f"Highest rate: {sweep.best:.2f} requests/s"
    tail = "" if sweep.converged or sweep.best is None else "; the search ended before a higher one was ruled out"
    return Group(*parts, f"[bold]{best}[/]{tail}.")


def _rates(report: Report) -> Table:
    figures, client = report.overall, report.client
    errors = "".join(f", {count} {kind}" for kind, count in sorted(figures.errors.items()))
    unfinished = f", {figures.unfinished} unfinished" if figures.unfinished else ""
    rows = [
        (
            "requests",
            f"{figures.requests:,} due in {report.window_s:.1f} s: {figures.completed:,} completed{errors}{unfinished}",
        ),
        ("requests/s", _rate(figures.requests_per_s)),
        ("output tokens/s", _rate(figures.output_tokens_per_s)),
        ("total tokens/s", _rate(figures.total_tokens_per_s)),
        ("prompt tokens", f"{figures.prompt_tokens:,}, of which {figures.cached_tokens:,} were cached"),
        ("client", f"{client.cpu_share:.0%} of a core"),
    ]
    if figures.goodput_per_s is not None:
        rows.insert(4, ("goodput", f"{_rate(figures.goodput_per_s)} requests/s, {figures.slo_share or 0:.1%} of them"))
    table = _table(("", ""), rows)
    table.show_header, table.columns[1].justify = False, "left"
    return table


def _latencies(figures: Figures) -> Table:
    spreads = {"TTFT": figures.ttft_s, "TPOT": figures.tpot_s, "gap": figures.gap_s, "end to end": figures.e2e_s}
    fields = ("mean", "p50", "p95", "p99", "max")
    return _table(("ms", *fields), [(name, *(_ms(spread, f) for f in fields)) for name, spread in spreads.items()])


def _groups(title: str, groups: dict[str, Figures]) -> RenderableType:
    """The busiest of them."""
    shown = sorted(groups, key=lambda name: -groups[name].requests)[:_MAX_GROUPS]
    columns = ("requests", "errors", "out tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "gap p99", "SLO")
    rows = [
        (
            escape(name),
            f"{group.requests:,}",
            f"{sum(group.errors.values())}",
            _rate(group.output_tokens_per_s),
            _ms(group.ttft_s, "p50"),
            _ms(group.ttft_s, "p99"),
            _ms(group.tpot_s, "p50"),
            _ms(group.gap_s, "p99"),
            "-" if group.slo_share is None else f"{group.slo_share:.0%}",
        )
        for name, group in ((name, groups[name]) for name in shown)
    ]
    table = _table((f"{title} (ms)", *columns), rows)
    left_out = len(groups) - len(shown)
    return Group(table, f"and {left_out} more {title}s, in the JSON report") if left_out else table


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _ms(spread: Spread | None, field: str) -> str:
    return "-" if spread is None else f"{1e3 * getattr(spread, field):,.1f}"
