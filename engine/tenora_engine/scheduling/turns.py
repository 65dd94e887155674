"""Whose turn it is to have prompts computed: lanes, one for each tenant and priority, in an order that changes as they
are served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from tenora_engine.fairness import Fairness, Tenant
from tenora_engine.request import Sequence
from tenora_engine.scheduling.waiting import Waiting
from tenora_engine.wire import Priority


@dataclass(eq=False, slots=True)
class Lane:
    """One tenant's prompts of one priority, in order of arrival: those that run, and those that wait."""

    tenant: Tenant
    priority: Priority
    running: deque[Sequence] = field(default_factory=deque)
    waiting: deque[Sequence] = field(default_factory=deque)
    passed: bool = False  # one of it could not start, and others may pass


class Turns:
    """The order: interactive before batch, unless a turn of the batch class is due; then the least served tenant."""

    def __init__(
        self, prompts: Iterable[Sequence], waiting: Waiting | None, fairness: Fairness, *, batch_is_due: bool
    ) -> None:
        self._batch_is_due = batch_is_due
        lanes: dict[tuple[Priority, str], Lane] = {}
        for sequence in prompts:
            request = sequence.request
            key = (request.priority, request.tenant)
            if key not in lanes:
                lanes[key] = Lane(fairness[request.tenant], request.priority)
            lanes[key].running.append(sequence)
        for priority, name, sequences in waiting.lanes() if waiting is not None else ():
            lane = lanes.setdefault((priority, name), Lane(fairness[name], priority))
            lane.waiting.extend(sequences)
        self._heap = [(self._rank(lane), lane.tenant.counter, index, lane) for index, lane in enumerate(lanes.values())]
        self._num_pushed = len(self._heap)
        heapify(self._heap)

    def pop(self) -> Lane | None:
        """The lane whose turn it is. It is out of the order until it is pushed back."""
        while self._heap:
            rank, _, _, lane = heappop(self._heap)
            if rank == self._rank(lane):
                return lane
            self.push(lane)  # the batch class has had its turn meanwhile
        return None

    def push(self, lane: Lane) -> None:
        self._num_pushed += 1
        heappush(self._heap, (self._rank(lane), lane.tenant.counter, self._num_pushed, lane))

    def batch_had_its_turn(self) -> None:
        self._batch_is_due = False

    def _rank(self, lane: Lane) -> int:
        if lane.priority is Priority.INTERACTIVE:
            return 1
        return 0 if self._batch_is_due else 2
