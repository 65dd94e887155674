"""Figures from records that were written by hand: every number is exact."""

from __future__ import annotations

import pytest

from tenora_platform.bench.load import Window
from tenora_platform.bench.metrics import Slo, by_model, by_tenant, figures, spread
from tenora_platform.bench.record import Failure, Record, Usage

WINDOW = Window(10.0, 20.0)
NO_SLO = Slo()


def record(intended: float, *chunks: float, tokens: int | None = None, **given: object) -> Record:
    """One that completed with its last chunk, with a token per chunk unless told otherwise."""
    values: dict[str, object] = {
        "tenant": "t",
        "model": "m",
        "intended": intended,
        "sent": intended,
        "chunks": list(chunks),
        "ended": chunks[-1] if chunks else None,
        "usage": Usage(prompt=100, output=len(chunks) if tokens is None else tokens, cached=20),
    }
    return Record(**(values | given))  # type: ignore[arg-type]


def test_latencies_of_one_request() -> None:
    one = record(10.0, 10.5, 10.6, 10.9)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.tpot_s == pytest.approx(0.2)  # (10.9 - 10.5) / 2
    assert one.gaps_s == pytest.approx([0.1, 0.3])
    assert one.e2e_s == pytest.approx(0.9)


def test_latencies_count_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    late = record(10.0, 12.5, 12.6, sent=12.0)
    assert late.ttft_s == pytest.approx(2.5)
    assert late.e2e_s == pytest.approx(2.6)


def test_several_tokens_in_a_chunk_make_no_gaps_that_nobody_saw() -> None:
    """Eight tokens in two chunks: one gap, and a time per token over seven tokens."""
    bundled = figures([record(10.0, 11.0, 11.7, tokens=8)], WINDOW, NO_SLO)
    assert bundled.gap_s is not None
    assert bundled.gap_s.count == 1
    assert bundled.gap_s.p50 == pytest.approx(0.7)
    assert bundled.tpot_s is not None
    assert bundled.tpot_s.p50 == pytest.approx(0.1)
    assert bundled.tokens_per_chunk == 4.0
    assert "4.00 tokens came per chunk" in bundled.notes[0]


def test_one_token_has_no_time_per_further_token() -> None:
    assert record(10.0, 11.0).tpot_s is None


def test_rates_are_of_what_arrived_within_the_window() -> None:
    """A request that was due before it brings the tokens that arrived in it, and so does one that ends after it."""
    before = record(8.0, 9.0, 11.0, 12.0, 13.0)
    across = record(18.0, 19.0, 20.5, tokens=4)
    found = figures([before, across], WINDOW, NO_SLO)
    assert found.output_tokens_per_s == pytest.approx((3 + 2) / 10)
    assert found.prompt_tokens_per_s == pytest.approx(100 / 10)  # of `across`, whose first token came within it
    assert found.total_tokens_per_s == pytest.approx(15 / 10 + 9.0)
    assert found.requests_per_s == pytest.approx(1 / 10)  # of `before`, which ended within it
    assert found.requests == 1


def test_failed_and_unfinished_requests_are_counted_and_bring_no_latencies() -> None:
    failed = record(11.0, 12.0, ended=None, failure=Failure("http_429"))
    unfinished = record(12.0, 13.0, 14.0, ended=None, usage=None, failure=Failure("unfinished"))
    found = figures([failed, unfinished, record(13.0, 14.0)], WINDOW, Slo(ttft_s=5.0))
    assert (found.requests, found.completed, found.unfinished, found.errors) == (3, 1, 1, {"http_429": 1})
    assert found.ttft_s is not None
    assert found.ttft_s.count == 1
    assert found.output_tokens_per_s == pytest.approx((2 + 1) / 10)
    assert found.slo_share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_s=0.5), 2),
        (Slo(tpot_s=0.15), 1),
        (Slo(gap_s=0.2), 1),
        (Slo(e2e_s=0.75), 1),
        (Slo(ttft_s=0.4, tpot_s=0.1), 0),
        (Slo(ttft_s=0.5, tpot_s=0.2, gap_s=0.3, e2e_s=0.9), 2),
    ],
)
def test_goodput_counts_requests_that_keep_every_limit(slo: Slo, good: int) -> None:
    steady, uneven = record(12.0, 12.5, 12.625, 12.75), record(14.0, 14.5, 14.625, 14.875)
    found = figures([steady, uneven], WINDOW, slo)
    assert found.goodput_per_s == pytest.approx(good / 10)
    assert found.slo_share == good / 2


def test_without_an_slo_there_is_no_goodput() -> None:
    found = figures([record(12.0, 13.0)], WINDOW, NO_SLO)
    assert (found.goodput_per_s, found.slo_share) == (None, None)


def test_tokens_without_usage_are_counted_by_chunks_and_the_reader_is_told() -> None:
    found = figures([record(12.0, 13.0, 14.0, usage=None)], WINDOW, NO_SLO)
    assert found.output_tokens == 2
    assert "without usage" in found.notes[0]


def test_cached_tokens_are_summed() -> None:
    found = figures([record(12.0, 13.0), record(13.0, 14.0)], WINDOW, NO_SLO)
    assert (found.prompt_tokens, found.cached_tokens) == (200, 40)


def test_percentiles_lie_between_neighbours() -> None:
    found = spread([float(value) for value in range(101)])
    assert found is not None
    assert (found.mean, found.p50, found.p95, found.p99, found.max) == (50.0, 50.0, 95.0, 99.0, 100.0)
    assert spread([]) is None
    assert spread([None]) is None


def test_groups_have_their_own_figures_and_add_up() -> None:
    records = [record(12.0, 13.0, tenant="a", model="x"), record(12.0, 13.0, 14.0, tenant="b", model="x")]
    tenants, models = by_tenant(records, WINDOW, NO_SLO), by_model(records, WINDOW, NO_SLO)
    assert {name: found.output_tokens for name, found in tenants.items()} == {"a": 1, "b": 2}
    assert {name: found.output_tokens for name, found in models.items()} == {"x": 3}


def test_an_empty_run_has_no_figures_but_is_one() -> None:
    found = figures([], WINDOW, Slo(ttft_s=1.0))
    assert (found.requests, found.output_tokens_per_s, found.ttft_s, found.slo_share) == (0, 0.0, None, None)
