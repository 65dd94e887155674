"""A run, or a sweep, as one HTML file: pictures in SVG, no script, nothing fetched."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

import numpy as np
from rich.console import Console, RenderableType

from tenora_platform.bench.load import Observed
from tenora_platform.bench.report import Report, SweepReport, show, show_sweep

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 28, 36
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#dc2626")
_STYLE: Final = (
    "body{font:14px system-ui,sans-serif;margin:2rem;max-width:1400px;color:#111;background:#fff}"
    "svg{margin:0 1rem 1rem 0}svg text{font:11px system-ui,sans-serif;fill:#444}pre{overflow-x:auto;font-size:12px}"
)

Line = Sequence[tuple[float, float]]


def run_page(report: Report, observed: Observed) -> str:
    """Distributions of the latencies, and output tokens per second over time."""
    completed = [record for record in observed.measured if record.completed]
    ttft = [1e3 * record.ttft_s for record in completed if record.ttft_s is not None]
    gaps = [1e3 * gap for record in completed for gap in record.gaps_s]
    begin = observed.window.begin
    charts = [
        chart("Time to first token", "ms", "share of requests", {"": _distribution(ttft)}),
        chart("Gaps between chunks", "ms", "share of gaps", {"": _distribution(gaps)}),
        chart("Output over time", "s from the window's begin", "chunks/s", {"": _per_second(observed, begin)}),
    ]
    return _page("tenora bench", charts, _as_text(show(report)))


def sweep_page(sweep: SweepReport) -> str:
    """Against the rate that was asked for: latencies, goodput, and the share that met the SLO."""
    trials = [(trial.rate, trial.report.overall) for trial in sorted(sweep.trials, key=lambda trial: trial.rate)]
    latencies = {
        "TTFT p99": [(rate, 1e3 * f.ttft_s.p99) for rate, f in trials if f.ttft_s],
        "TTFT p50": [(rate, 1e3 * f.ttft_s.p50) for rate, f in trials if f.ttft_s],
    }
    pace = {
        "TPOT p99": [(rate, 1e3 * f.tpot_s.p99) for rate, f in trials if f.tpot_s],
        "TPOT p50": [(rate, 1e3 * f.tpot_s.p50) for rate, f in trials if f.tpot_s],
    }
    goodput = {"goodput": [(rate, f.goodput_per_s or 0.0) for rate, f in trials], "asked": [(r, r) for r, _ in trials]}
    charts = [
        chart("Time to first token", "requests/s asked for", "ms", latencies),
        chart("Time per output token", "requests/s asked for", "ms", pace),
        chart("Goodput", "requests/s asked for", "requests/s", goodput),
    ]
    return _page("tenora bench --sweep", charts, _as_text(show_sweep(sweep)))


def chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Line]) -> str:
    """A line chart with axes from zero. Lines may be empty."""
    points = [point for line in lines.values() for point in line]
    x_max, y_max = (_round_up(max((point[axis] for point in points), default=0.0)) for axis in (0, 1))

    def place(x: float, y: float) -> str:
        across = _LEFT + x / x_max * (_WIDTH - _LEFT - _RIGHT)
        up = _HEIGHT - _BOTTOM - y / y_max * (_HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{up:.1f}"

    parts = [f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text x="{_LEFT}" y="16" style="font-weight:bold">{escape(title)}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        left, right = place(0, share * y_max), place(x_max, share * y_max)
        parts.append(f'<polyline points="{left} {right}" stroke="#ddd" fill="none"/>')
        y = left.split(",")[1]
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{share * y_max:.3g}</text>')
        x = place(share * x_max, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 20}" text-anchor="middle">{share * x_max:.3g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="16" text-anchor="end">{escape(y_name)}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = " ".join(place(x, y) for x, y in line)
        parts.append(f'<polyline points="{drawn}" stroke="{colour}" stroke-width="1.6" fill="none"/>')
        if name:
            at = f'x="{_LEFT + 8}" y="{_TOP + 14 + 14 * number}"'
            parts.append(f'<text {at} style="fill:{colour}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _round_up(value: float) -> float:
    """To a number whose quarters read well; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(step for step in (1, 2, 4, 6, 8, 10) if value <= step * power * (1 + 1e-9))


def _distribution(values: Sequence[float]) -> Line:
    """The empirical distribution function in at most 200 steps."""
    if not values:
        return []
    shares = np.linspace(0, 1, min(len(values), 200) + 1)
    return [(float(v), float(s)) for v, s in zip(np.quantile(values, shares), shares, strict=True)]


def _per_second(observed: Observed, begin: float) -> Line:
    arrivals = [chunk - begin for record in observed.records for chunk in record.chunks if chunk in observed.window]
    if observed.window.seconds < 2:
        return []
    counts, edges = np.histogram(arrivals, bins=int(observed.window.seconds), range=(0, observed.window.seconds))
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    widths = np.diff(edges)
    return [(float(x), float(n / w)) for x, n, w in zip(middles, counts, widths, strict=True)]


def _as_text(shown: RenderableType) -> str:
    text = io.StringIO()
    Console(width=150, file=text).print(shown)
    return text.getvalue()


def _page(title: str, charts: list[str], text: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{''.join(charts)}<pre>{escape(text)}</pre></html>\n"
    )
