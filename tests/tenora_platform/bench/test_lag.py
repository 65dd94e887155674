"""A client that was itself too slow must say so: here it is made slow."""

from __future__ import annotations

import asyncio
import time

import pytest

from tenora_platform.bench.lag import ClientLag, LagMeter, taints
from tenora_platform.bench.metrics import Spread
from tenora_platform.bench.record import Failure, Record

CALM = ClientLag(0.0005, 0.001, 0.001, 0.002, 0.1, 0)
TTFT = Spread(10, 0.1, 0.1, 0.1, 0.1, 0.1)
GAP = Spread(10, 0.03, 0.03, 0.03, 0.03, 0.03)


async def test_a_blocked_event_loop_is_noticed() -> None:
    meter = LagMeter()
    meter.start()
    for _ in range(3):
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # what a client must never do
    await asyncio.sleep(0.02)
    lag = meter.stop([])
    assert lag.loop_delay_max_s > 0.05
    assert any("event loop" in taint for taint in taints(lag, ttft=TTFT, gap=GAP))


async def test_processor_time_is_that_of_this_process() -> None:
    walls, cpus = iter([100.0, 110.0]), iter([7.0, 16.0])
    meter = LagMeter(lambda: next(walls, 110.0), lambda: next(cpus))
    meter.start()
    lag = meter.stop([])
    assert lag.cpu_share == pytest.approx(0.9)
    assert any("90% of a core" in taint for taint in taints(lag, ttft=TTFT, gap=GAP))


async def test_sending_late_is_measured_against_the_schedule() -> None:
    meter = LagMeter()
    meter.start()
    records = [Record("t", "m", intended=float(at), sent=at + 0.2) for at in range(10)]
    lag = meter.stop(records)
    assert lag.send_lag_p99_s == pytest.approx(0.2)
    assert any("200 ms (p99) after they were due" in taint for taint in taints(lag, ttft=TTFT, gap=GAP))


async def test_requests_that_were_not_sent_taint_the_figures() -> None:
    meter = LagMeter()
    meter.start()
    lag = meter.stop([Record("t", "m", 0.0, 0.0, failure=Failure("not_sent"))])
    assert any("1 requests were not sent" in taint for taint in taints(lag, ttft=TTFT, gap=GAP))


def test_a_client_that_keeps_up_taints_nothing() -> None:
    assert taints(CALM, ttft=TTFT, gap=GAP) == []


def test_a_delay_matters_against_what_is_measured() -> None:
    """4 ms are lost in gaps of a second, and are most of a gap of 5 ms."""
    delayed = ClientLag(0.004, 0.005, 0.0, 0.0, 0.1, 0)
    slow, fast = Spread(9, 1.0, 1.0, 1.0, 1.0, 1.0), Spread(9, 0.005, 0.005, 0.005, 0.005, 0.005)
    assert taints(delayed, ttft=slow, gap=slow) == []
    assert taints(delayed, ttft=slow, gap=fast) != []
