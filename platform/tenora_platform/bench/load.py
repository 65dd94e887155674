"""Load on a server: an open loop keeps to a schedule whatever the server does, a closed one keeps N streams busy.

Which of it counts is the window. It begins with the first request that is no warm-up. It ends after its duration, or
when the load stops being kept up: in a closed loop when a stream finds nothing more to send, in an open loop when the
next request would have been due. What still runs then may end within the drain, or is given up as unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from tenora_platform.bench.record import NOT_SENT, UNFINISHED, Failure, Record
from tenora_platform.bench.workload import Call

_LEAD_S: Final = 0.05  # before the first arrival, so that it is not late already
_POLL_S: Final = 0.5  # how often to see whether the end is known by now


@dataclass(frozen=True)
class Limits:
    """A request is warm-up while fewer than `warmup_requests` were sent or `warmup_s` have not passed."""

    requests: int | None = None  # after the warm-up
    duration_s: float | None = None  # of the window
    warmup_requests: int = 0
    warmup_s: float = 0.0
    drain_s: float = 30.0
    max_in_flight: int = 1000  # of an open loop; what comes on top is not sent, and says so


@dataclass(frozen=True)
class Window:
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def __contains__(self, instant: float) -> bool:
        return self.begin <= instant <= self.end


@dataclass(frozen=True)
class Observed:
    records: list[Record]  # of all requests, warm-up included, in the order in which they were due
    window: Window

    @property
    def measured(self) -> list[Record]:
        """Those that were due within the window: whose latencies count."""
        return [record for record in self.records if record.intended in self.window]


class NothingMeasured(ValueError):
    """Every request was warm-up."""


class Client(Protocol):
    async def send(self, call: Call, record: Record) -> None:
        """Ask, and fill in the record, which stays as far as it is when this is cancelled."""


OnEnd = Callable[[Record], None]


async def closed_loop(
    calls: Iterable[Call], streams: int, limits: Limits, client: Client, clock: Callable[[], float], on_end: OnEnd
) -> Observed:
    """`streams` clients, each sending its next request as soon as the last one has ended. Raises NothingMeasured."""
    gate = _Gate(limits, clock())
    source = iter(calls)
    records: list[Record] = []

    async def stream() -> None:
        while gate.passes(clock()) and (call := next(source, None)) is not None:
            now = clock()
            record = Record(call.tenant, call.model, intended=now, sent=now)
            records.append(record)
            await _send(client, call, record, on_end)
        gate.shut(clock())

    await _drain({asyncio.create_task(stream()) for _ in range(streams)}, gate, limits.drain_s, clock)
    return Observed(records, gate.window(records))


async def open_loop(
    calls: Iterable[Call], limits: Limits, client: Client, clock: Callable[[], float], on_end: OnEnd
) -> Observed:
    """Every call at its time. Latencies count from then, also when the client is late. Raises NothingMeasured."""
    start = clock() + _LEAD_S
    gate = _Gate(limits, start)
    records: list[Record] = []
    running: set[asyncio.Task[None]] = set()
    try:
        for call in calls:
            due = start + call.at
            if not gate.passes(due):
                break
            await asyncio.sleep(max(0.0, due - clock()))
            record = Record(call.tenant, call.model, intended=due, sent=clock())
            records.append(record)
            if len(running) >= limits.max_in_flight:
                record.failure = Failure(NOT_SENT, f"{limits.max_in_flight} requests were in flight")
                on_end(record)
                continue
            task = asyncio.create_task(_send(client, call, record, on_end))
            running.add(task)
            task.add_done_callback(running.discard)
        gate.shut(records[-1].intended if records else start)
    finally:
        await _drain(set(running), gate, limits.drain_s, clock)
    return Observed(records, gate.window(records))


class _Gate:
    """Decides whether a request still belongs to the load, and knows the window by it."""

    def __init__(self, limits: Limits, start: float) -> None:
        self._limits = limits
        self._warm_at = start + limits.warmup_s
        self._num_warmup = 0
        self._num_measured = 0
        self._begin: float | None = None
        self._end: float | None = None

    @property
    def closes_at(self) -> float | None:
        """Nothing is sent from then on; None while that is not known."""
        if self._end is None and self._begin is not None and self._limits.duration_s is not None:
            return self._begin + self._limits.duration_s
        return self._end

    def passes(self, due: float) -> bool:
        """Whether a request is to be sent that is due at this instant, which is not before any earlier one's."""
        if self.closes_at is not None and due >= self.closes_at:
            self.shut(self.closes_at)
            return False
        if self._begin is None and self._num_warmup >= self._limits.warmup_requests and due >= self._warm_at:
            self._begin = due
        if self._begin is None:
            self._num_warmup += 1
        elif self._num_measured == self._limits.requests:
            self.shut(due)
            return False
        else:
            self._num_measured += 1
        return True

    def shut(self, now: float) -> None:
        if self._end is None:
            self._end = now

    def window(self, records: list[Record]) -> Window:
        """A load that was there all at once is measured to the end of its answers. Call when it is over.

        Raises NothingMeasured.
        """
        begin, end = self._begin, self.closes_at
        if begin is None or end is None:
            raise NothingMeasured("the load ended within its warm-up: nothing was measured")
        ends = [record.ended for record in records if record.ended is not None]
        return Window(begin, end if end > begin else max(ends, default=begin))


async def _send(client: Client, call: Call, record: Record, on_end: OnEnd) -> None:
    try:
        await client.send(call, record)
    except asyncio.CancelledError:
        record.failure = Failure(UNFINISHED)
        raise
    finally:
        on_end(record)


async def _drain(tasks: set[asyncio.Task[None]], gate: _Gate, drain_s: float, clock: Callable[[], float]) -> None:
    """Wait for the tasks until the drain is over, then cancel them. What one raises is a bug, and raised."""
    pending = tasks
    try:
        while pending:
            left_s = _POLL_S if gate.closes_at is None else gate.closes_at + drain_s - clock()
            if left_s <= 0:
                break
            _, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
