from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, RenderableType

from tenora_platform.bench.lag import ClientLag
from tenora_platform.bench.load import Observed, Window
from tenora_platform.bench.metrics import Slo
from tenora_platform.bench.plot import chart
from tenora_platform.bench.record import Failure, Record, Usage
from tenora_platform.bench.report import Report, SweepReport, Trial, make_report, show, show_sweep

CALM = ClientLag(0.0, 0.0, 0.0, 0.0, 0.05, 0)
LATE = ClientLag(0.5, 0.5, 0.0, 0.0, 0.05, 0)


def report(num_models: int = 1, client: ClientLag = CALM, e2e_s: float = 0.2) -> Report:
    """A hundred requests a model; each answers after 0.1 s with a token and ends with another."""
    records = [
        Record("t", f"m{model}", at, at, [at + 0.1, at + e2e_s], at + e2e_s, Usage(10, 2))
        for model in range(num_models)
        for at in (number / 10 for number in range(100))
    ]
    records.append(Record("t", "m0", 1.0, 1.0, failure=Failure("http_429", "quota [exceeded]")))
    return make_report(Observed(records, Window(0.0, 10.0)), client, Slo(ttft_s=0.5), {"streams": 1})


def text(shown: RenderableType) -> str:
    file = io.StringIO()
    Console(width=100, file=file).print(shown)
    return file.getvalue()


def test_the_tables_fit_a_terminal_and_hold_the_figures() -> None:
    shown = text(show(report()))
    for words in ("101 due in 10.0 s: 100 completed, 1 http_429", "TTFT", "100.0", "5% of a core", "quota [exceeded]"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_of_many_models_the_busiest_are_shown() -> None:
    shown = text(show(report(num_models=25)))
    assert len(re.findall(r"│ m\d+", shown)) == 20
    assert "and 5 more models" in shown


def test_a_sweep_says_what_it_found_and_where_the_client_was_late() -> None:
    trials = [Trial(2.0, True, report()), Trial(4.0, False, report(client=LATE))]
    shown = text(show_sweep(SweepReport(2.0, converged=False, slo_share=0.95, trials=trials)))
    assert "Highest rate: 2.00 requests/s; the search ended" in shown
    assert "tainted" in shown
    assert "the client was late itself" in shown
    assert "No rate" in text(show_sweep(SweepReport(None, converged=False, slo_share=0.95, trials=trials[1:])))


def test_a_window_that_is_too_short_for_its_answers_is_remarked() -> None:
    """Streams that began together read and answer in step: a short window holds the one or the other."""
    assert not any("shorter than 3 answers" in remark for remark in report(e2e_s=3.2).remarks)
    assert any("shorter than 3 answers" in remark for remark in report(e2e_s=3.5).remarks)


def test_a_chart_places_its_points_between_the_axes() -> None:
    drawn = chart("title <1>", "x", "y", {"line": [(0.0, 0.0), (7.0, 70.0)]})
    assert "title &lt;1&gt;" in drawn
    assert ">8<" in drawn  # 7 is rounded up, so that the quarters read well
    assert ">80<" in drawn
    (line,) = re.findall(r'points="([^"]+)" stroke="#2563eb"', drawn)
    (left, bottom), (right, top) = ([float(value) for value in point.split(",")] for point in line.split())
    assert (left, bottom) == (64.0, 224.0)
    assert right == pytest.approx(64 + 7 / 8 * 560)
    assert top == pytest.approx(224 - 7 / 8 * 196)


def test_a_chart_of_nothing_is_empty() -> None:
    assert 'points=""' in chart("t", "x", "y", {"": []})
