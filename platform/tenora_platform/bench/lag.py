"""Whether the client itself was the bottleneck: it watches its own event loop, its schedule and its processor time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from tenora_platform.bench.metrics import Spread
from tenora_platform.bench.record import NOT_SENT, Record

_PERIOD_S: Final = 0.01
# Below these a delay says nothing: timers of the operating system are not finer.
_LOOP_DELAY_S: Final = 0.002
_SEND_LAG_S: Final = 0.005
_SHARE: Final = 0.1  # a delay matters when it is this part of what is measured
_CPU_SHARE: Final = 0.8


class ClientLag(msgspec.Struct, frozen=True):
    """Of the client. Chunks that arrive while its loop is busy are stamped late by at most the loop's delay."""

    loop_delay_p99_s: float
    loop_delay_max_s: float
    send_lag_p99_s: float  # behind the schedule of an open loop
    send_lag_max_s: float
    cpu_share: float  # processor time over wall time; 1 is one core
    not_sent: int


class LagMeter:
    """Watches this event loop and process from `start` to `stop`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time):
        self._clock = clock
        self._cpu = cpu
        self._delays: list[float] = []

    def start(self) -> None:
        self._began, self._cpu_began = self._clock(), self._cpu()
        self._task = asyncio.create_task(self._watch())

    def stop(self, records: Sequence[Record]) -> ClientLag:
        self._task.cancel()
        wall = self._clock() - self._began
        lags = [record.sent - record.intended for record in records]
        return ClientLag(
            loop_delay_p99_s=_p99(self._delays),
            loop_delay_max_s=max(self._delays, default=0.0),
            send_lag_p99_s=_p99(lags),
            send_lag_max_s=max(lags, default=0.0),
            cpu_share=(self._cpu() - self._cpu_began) / wall if wall > 0 else 0.0,
            not_sent=sum(r.failure is not None and r.failure.kind == NOT_SENT for r in records),
        )

    async def _watch(self) -> None:
        while True:
            due = self._clock() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            self._delays.append(max(0.0, self._clock() - due))


def taints(lag: ClientLag, *, ttft: Spread | None, gap: Spread | None) -> list[str]:
    """What the reader of the figures must know; empty when the client kept up."""
    ttft_s = ttft.p50 if ttft is not None else 0.0
    gap_s = gap.p50 if gap is not None else ttft_s
    found = []
    if lag.loop_delay_p99_s > max(_LOOP_DELAY_S, _SHARE * gap_s):
        found.append(
            f"the client's event loop was late by up to {1e3 * lag.loop_delay_p99_s:.0f} ms (p99): "
            "first-token times and gaps hold this delay"
        )
    if lag.send_lag_p99_s > max(_SEND_LAG_S, _SHARE * ttft_s):
        found.append(
            f"requests were sent up to {1e3 * lag.send_lag_p99_s:.0f} ms (p99) after they were due: "
            "latencies count from when they were due and hold this delay"
        )
    if lag.cpu_share > _CPU_SHARE:
        found.append(f"the client used {lag.cpu_share:.0%} of a core: the server may be faster than these figures")
    if lag.not_sent:
        found.append(
            f"{lag.not_sent} requests were not sent, too many were in flight: the load was lower than asked for"
        )
    return found


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0
