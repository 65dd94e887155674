from __future__ import annotations

from pathlib import Path

import pytest

from tenora_platform.bench.metrics import Slo
from tenora_platform.bench.options import Options
from tenora_platform.bench.run import Rate, Replay, Streams
from tenora_platform.bench.targets import Api, Targets, TargetTenant

TARGETS = Targets("http://127.0.0.1/v1", [TargetTenant("a", ["base"], "tnr_secret")])


def test_without_options_sixteen_streams_run_for_twenty_seconds() -> None:
    plan = Options().plan(TARGETS)
    assert plan.shape == Streams(16)
    assert (plan.limits.duration_s, plan.limits.requests, plan.limits.warmup_requests) == (20.0, None, 16)


def test_a_number_of_requests_replaces_the_duration() -> None:
    assert Options(requests=5).plan(TARGETS).limits.duration_s is None


def test_an_open_loop_warms_up_by_time() -> None:
    plan = Options(rate=3.0, arrivals="bursts:4").plan(TARGETS)
    assert plan.shape == Rate(3.0, "bursts:4")
    assert (plan.limits.warmup_requests, plan.limits.warmup_s) == (0, 2.0)


@pytest.mark.parametrize(("text", "requests", "seconds"), [("7", 7, 0.0), ("2.5s", 0, 2.5), ("0", 0, 0.0)])
def test_the_warm_up_is_a_number_or_a_time(text: str, requests: int, seconds: float) -> None:
    limits = Options(warmup=text).plan(TARGETS).limits
    assert (limits.warmup_requests, limits.warmup_s) == (requests, seconds)


def test_a_trace_is_replayed_unless_a_load_is_given(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 1, "prompt_tokens": 5, "output_tokens": 7}\n')
    assert Options(trace=str(file)).plan(TARGETS).shape == Replay()
    assert Options(trace=str(file)).plan(TARGETS).limits.duration_s is None
    assert Options(trace=str(file), streams=2).plan(TARGETS).shape == Streams(2)


def test_a_sweep_begins_at_one_request_per_second() -> None:
    plan = Options(sweep=True, slo_ttft=500, slo_gap=50).plan(TARGETS)
    assert plan.shape == Rate(1.0)
    assert plan.slo == Slo(ttft_s=0.5, gap_s=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(streams=2, rate=1.0), "one of them"),
        (Options(sweep=True), "needs an SLO"),
        (Options(sweep=True, slo_ttft=500, streams=2), "open loop"),
        (Options(warmup="soon"), "no warm-up"),
        (Options(duration=-1.0), "--duration is above zero, not -1"),
        (Options(timeout=0.0), "--timeout is above zero"),
        (Options(drain=-1.0), "--drain is zero or more"),
        (Options(rate=float("nan")), "a rate is above zero"),
        (Options(sweep=True, slo_ttft=-5.0), "--slo-ttft is above zero"),
        (Options(sweep=True, slo_ttft=5.0, slo_share=2.0), "--slo-share is a share"),
        (Options(model_weights="zipf:x"), "none of uniform"),
        (Options(rate=1.0, arrivals="gamma"), "none of poisson"),
        (Options(model_weights="pareto"), "none of uniform"),
        (Options(prompt="many"), "no length"),
        (Options(prompt_as="ids"), "need --tokenizer"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(options: Options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        options.plan(TARGETS)


def test_a_chat_is_sent_text() -> None:
    assert isinstance(next(Options(api=Api.CHAT).plan(TARGETS).workload.calls()).prompt, str)


def test_what_the_report_repeats_holds_no_key() -> None:
    assert "tnr_secret" not in repr(Options().plan(TARGETS).options)
