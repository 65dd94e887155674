"""One run, or a sweep of runs, from a plan to a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from tenora_platform.bench.lag import LagMeter
from tenora_platform.bench.load import Client, Limits, Observed, OnEnd, closed_loop, open_loop
from tenora_platform.bench.metrics import Slo
from tenora_platform.bench.report import Report, SweepReport, Trial, make_report
from tenora_platform.bench.sweep import Search
from tenora_platform.bench.workload import Call, Workload

clock: Final = time.monotonic
_MOST_MADE_AHEAD: Final = 5000


@dataclass(frozen=True)
class Streams:
    """A closed loop of `count` clients."""

    count: int


@dataclass(frozen=True)
class Rate:
    """An open loop: `process` is one of `arrivals`, `rate` in requests per second."""

    rate: float
    process: str = "poisson"


@dataclass(frozen=True)
class Replay:
    """An open loop at the times of the workload's trace."""


Shape = Streams | Rate | Replay


@dataclass(frozen=True)
class Plan:
    workload: Workload
    shape: Shape
    limits: Limits
    slo: Slo
    options: dict[str, Any]  # what the report repeats of what was asked for; no keys


@dataclass(frozen=True)
class Outcome:
    report: Report
    observed: Observed


async def run(plan: Plan, client: Client, on_end: OnEnd = lambda _: None) -> Outcome:
    """Raises NothingMeasured, and PromptError when a prompt cannot be made."""
    calls = _calls(plan)
    meter = LagMeter(clock)
    meter.start()
    if isinstance(plan.shape, Streams):
        observed = await closed_loop(calls, plan.shape.count, plan.limits, client, clock, on_end)
    else:
        observed = await open_loop(calls, plan.limits, client, clock, on_end)
    return Outcome(make_report(observed, meter.stop(observed.records), plan.slo, plan.options), observed)


async def sweep(
    plan: Plan, search: Search, share: float, client: Client, on_trial: Callable[[Trial], None] = lambda _: None
) -> SweepReport:
    """Runs of the plan in an open loop at the rates that the search asks for.

    A rate meets the SLO when at least `share` of its requests do; failed and unfinished ones do not. Raises as `run`.
    """
    assert isinstance(plan.shape, Rate), "a sweep varies the rate of an open loop"
    trials = []
    while (rate := search.next_rate()) is not None:
        outcome = await run(replace(plan, shape=replace(plan.shape, rate=rate)), client)
        met = (outcome.report.overall.slo_share or 0.0) >= share
        search.tell(rate, met=met)
        trials.append(Trial(rate, met, outcome.report))
        on_trial(trials[-1])
    return SweepReport(search.best, search.converged, share, trials)


def _calls(plan: Plan) -> Iterator[Call]:
    """The first of them are made before the clock runs, as many as will probably be needed."""
    limits, shape = plan.limits, plan.shape
    match shape:
        case Streams():
            calls, guess = plan.workload.calls(), 4 * shape.count
        case Rate():
            calls = plan.workload.scheduled(shape.process, shape.rate)
            guess = int(1.2 * shape.rate * ((limits.duration_s or 0.0) + limits.warmup_s))
        case Replay():
            calls, guess = plan.workload.replayed(), len(plan.workload.trace)
    if limits.requests is not None:
        guess = limits.requests
    return chain(list(islice(calls, min(guess + limits.warmup_requests, _MOST_MADE_AHEAD))), calls)
