"""Who waits: a lane for each priority and tenant, in order of arrival, and those that were passed by others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from tenora_engine.request import Sequence
from tenora_engine.wire import Priority


def _order(sequence: Sequence) -> int:
    return sequence.order


class Waiting:
    def __init__(self) -> None:
        self._lanes: dict[Priority, dict[str, list[Sequence]]] = {priority: {} for priority in Priority}
        self._passed_since: dict[Sequence, float] = {}  # in order of these times
        self._batch_since: float | None = None  # when the batch class began to wait for a turn

    def __len__(self) -> int:
        return sum(len(lane) for lanes in self._lanes.values() for lane in lanes.values())

    def __iter__(self) -> Iterator[Sequence]:
        """Interactive ones first, each tenant's in order of arrival."""
        for lanes in self._lanes.values():
            for lane in lanes.values():
                yield from lane

    def lanes(self) -> Iterator[tuple[Priority, str, list[Sequence]]]:
        for priority, lanes in self._lanes.items():
            for tenant, lane in lanes.items():
                yield priority, tenant, lane

    def add(self, sequence: Sequence) -> None:
        """A new one, or one that comes back: it goes before those that arrived after it."""
        request = sequence.request
        insort(self._lanes[request.priority].setdefault(request.tenant, []), sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        lanes, tenant = self._lanes[sequence.request.priority], sequence.request.tenant
        lane = lanes[tenant]
        index = bisect_left(lane, sequence.order, key=_order)
        assert lane[index] is sequence
        del lane[index]
        if not lane:
            del lanes[tenant]
        self._passed_since.pop(sequence, None)

    def may_be_passed(self, sequence: Sequence, now: float) -> None:
        """It was its turn, it could not start, and those behind it may."""
        self._passed_since.setdefault(sequence, now)

    def passed_for(self, seconds: float, now: float) -> list[tuple[Sequence, float]]:
        """Those that may have been passed for so long, the longest first, and for how long."""
        found = []
        for sequence, since in self._passed_since.items():
            if now - since < seconds:
                break
            found.append((sequence, now - since))
        return found

    def batch_waits_for(self, now: float) -> float:
        """Seconds for which requests of the batch class wait without any of them having started."""
        if not self._lanes[Priority.BATCH]:
            self._batch_since = None
            return 0.0
        if self._batch_since is None:
            self._batch_since = now
        return now - self._batch_since

    def started(self, sequence: Sequence, now: float) -> None:
        self.remove(sequence)
        if sequence.request.priority is Priority.BATCH:
            self._batch_since = now
