"""Both loops in virtual time: every instant is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count, repeat

import pytest
from scripted_server import in_virtual_time

from tenora_platform.bench.load import Limits, NothingMeasured, Observed, closed_loop, open_loop
from tenora_platform.bench.record import Record
from tenora_platform.bench.workload import Call


class Sleeper:
    """A server that takes `service_s` for each request, `workers` of them at a time, without end where 0."""

    def __init__(self, clock: Callable[[], float], service_s: float, workers: int = 0) -> None:
        self._clock = clock
        self._service_s = service_s
        self._free = asyncio.Semaphore(workers or 10_000)

    async def send(self, call: Call, record: Record) -> None:
        async with self._free:
            await asyncio.sleep(self._service_s)
        record.chunks.append(self._clock())
        record.ended = self._clock()


def calls(times: Iterable[float] = repeat(0.0)) -> Iterable[Call]:
    return (Call("t", "m", "p", 1, at) for at in times)


def closed(streams: int, limits: Limits, service_s: float = 1.0) -> Observed:
    return in_virtual_time(
        lambda clock: closed_loop(calls(), streams, limits, Sleeper(clock, service_s), clock, lambda _: None)
    )


def opened(times: Iterable[float], limits: Limits, service_s: float = 1.0, workers: int = 0) -> Observed:
    return in_virtual_time(
        lambda clock: open_loop(calls(times), limits, Sleeper(clock, service_s, workers), clock, lambda _: None)
    )


def test_a_closed_loop_keeps_its_streams_busy() -> None:
    observed = closed(3, Limits(duration_s=10.0))
    assert sorted(record.sent for record in observed.records) == [float(at) for at in range(10) for _ in range(3)]
    assert (observed.window.begin, observed.window.end) == (0.0, 10.0)


def test_a_closed_loop_ends_its_window_when_a_stream_has_nothing_more_to_send() -> None:
    """Seven requests on three streams: at 2.0 one stream is still busy and two are not."""
    observed = closed(3, Limits(requests=7))
    assert len(observed.records) == 7
    assert observed.window.end == 2.0
    assert max(record.ended or 0.0 for record in observed.records) == 3.0


def test_warm_up_requests_do_not_count() -> None:
    observed = closed(4, Limits(requests=8, warmup_requests=4))
    assert len(observed.records) == 12
    assert observed.window.begin == 1.0
    assert len(observed.measured) == 8


def test_warm_up_may_be_a_time() -> None:
    observed = closed(2, Limits(duration_s=5.0, warmup_s=2.5))
    assert observed.window.begin == 3.0
    assert observed.window.end == 8.0


def test_what_does_not_end_in_the_drain_is_unfinished() -> None:
    observed = closed(2, Limits(duration_s=5.0, drain_s=1.5), service_s=4.0)
    assert [record.failure and record.failure.kind for record in observed.records] == [
        None,
        None,
        "unfinished",
        "unfinished",
    ]
    assert closed(2, Limits(duration_s=5.0, drain_s=3.5), service_s=4.0).records[-1].failure is None


def test_a_load_that_was_there_all_at_once_is_measured_to_its_end() -> None:
    observed = opened([0.0] * 5, Limits(), workers=1)
    assert observed.window.seconds == pytest.approx(5.0)


def test_an_open_loop_keeps_its_schedule_whatever_the_server_does() -> None:
    """Coordinated omission: the server can do half of what is asked, and the waits are seen in full."""
    observed = opened((at * 0.5 for at in count()), Limits(requests=20), workers=1)
    start = observed.records[0].intended
    assert [record.intended - start for record in observed.records] == pytest.approx([at * 0.5 for at in range(20)])
    assert [record.ttft_s for record in observed.records] == pytest.approx([1.0 + at * 0.5 for at in range(20)])


def test_the_window_of_an_open_loop_ends_when_the_next_would_be_due() -> None:
    assert opened((at * 0.5 for at in count()), Limits(requests=20)).window.seconds == pytest.approx(10.0)
    assert opened((at * 0.5 for at in count()), Limits(duration_s=3.2)).window.seconds == pytest.approx(3.2)


def test_an_open_loop_warms_up_by_time_and_by_requests() -> None:
    by_time = opened((at * 0.5 for at in count()), Limits(requests=4, warmup_s=1.2))
    assert len(by_time.records) - len(by_time.measured) == 3
    by_requests = opened((at * 0.5 for at in count()), Limits(requests=4, warmup_requests=2))
    assert len(by_requests.records) - len(by_requests.measured) == 2
    assert len(by_requests.measured) == 4


def test_too_many_in_flight_are_not_sent_and_say_so() -> None:
    observed = opened([0.0] * 5, Limits(max_in_flight=3))
    assert [record.failure and record.failure.kind for record in observed.records] == [None] * 3 + ["not_sent"] * 2


def test_a_bug_in_the_client_is_not_swallowed() -> None:
    class Broken:
        async def send(self, call: Call, record: Record) -> None:
            raise KeyError("bug")

    with pytest.raises(KeyError):
        in_virtual_time(lambda clock: closed_loop(calls(), 2, Limits(requests=2), Broken(), clock, lambda _: None))


def test_a_load_that_never_got_warm_says_so() -> None:
    with pytest.raises(NothingMeasured):
        opened([0.0, 1.0], Limits(warmup_requests=5))
