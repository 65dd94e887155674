"""Tenants that send requests to the scheduler, in steps of one second, without a model: who is served how much."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

from naive_engine import BLOCK_SIZE, ScriptedAdapters, make_request

from tenora_engine.fairness import Fairness, Prices
from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.request import Request
from tenora_engine.scheduler import Limits, Scheduler
from tenora_engine.wire import Priority


@dataclass(frozen=True)
class Habit:
    """How a tenant uses the engine. Lengths are drawn evenly from their range."""

    tenant: str
    per_step: float  # requests, on average
    prompt: tuple[int, int] = (8, 40)
    output: tuple[int, int] = (4, 40)
    weight: float = 1.0
    priority: Priority = Priority.INTERACTIVE
    adapters: tuple[str, ...] = ()  # each request uses one of them, in turn
    max_open: int = 10_000  # requests sent and not ended: no more are sent meanwhile


@dataclass
class Simulation:
    habits: list[Habit]
    blocks: int = 96
    sequences: int = 12
    tokens: int = 48
    num_slots: int = 4
    patience_s: float = 20.0
    batch_patience_s: float = 50.0
    lead: float = 0.0
    prices: Prices = field(default_factory=Prices)
    seed: int = 0

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.scheduler = Scheduler(
            Limits(
                self.sequences,
                self.tokens,
                patience_s=self.patience_s,
                batch_patience_s=self.batch_patience_s,
                lead=self.lead,
            ),
            PrefixCache(self.blocks, BLOCK_SIZE, enabled=False),
            ScriptedAdapters(self.num_slots),
            fairness=Fairness(self.prices),
        )
        self.now = 0.0
        self.served: Counter[str] = Counter()  # prompt and generated tokens at the default prices, by tenant
        self.history: defaultdict[str, list[float]] = defaultdict(list)  # of `served`, by step
        self.backlogged: defaultdict[str, list[bool]] = defaultdict(list)  # whether it had something waiting
        self.arrived: dict[Request, float] = {}
        self.started: dict[Request, float] = {}
        self._open: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()

    def run(self, steps: int) -> Simulation:
        for _ in range(steps):
            self._send()
            self._step()
        return self

    def waits(self, tenant: str) -> list[float]:
        """From arrival to the first start; those that wait still are counted with what they have waited so far."""
        return [
            self.started.get(request, self.now) - arrived
            for request, arrived in self.arrived.items()
            if request.tenant == tenant
        ]

    def _send(self) -> None:
        for habit in self.habits:
            num_new = int(habit.per_step) + (self.dice.random() < habit.per_step % 1)
            for _ in range(min(num_new, habit.max_open - self._open[habit.tenant])):
                self._sent[habit.tenant] += 1
                self._open[habit.tenant] += 1
                adapter = habit.adapters and habit.adapters[self._sent[habit.tenant] % len(habit.adapters)]
                request = make_request(
                    f"{habit.tenant}{self._sent[habit.tenant]}",
                    [0] * self.dice.randint(*habit.prompt),
                    max_tokens=self.dice.randint(*habit.output),
                    adapters=(adapter,) if adapter else (),
                    tenant=habit.tenant,
                    weight=habit.weight,
                    priority=habit.priority,
                )
                self.arrived[request] = self.now
                self.scheduler.add(request)

    def _step(self) -> None:
        waiting = Counter(sequence.request.tenant for sequence in self.scheduler.waiting)
        plan = self.scheduler.schedule(self.now)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            request = sequence.request
            self.started.setdefault(request, self.now)
            if sequence.num_preemptions == 0:  # a recompute is no service
                self.served[request.tenant] += max(0, min(chunk.end, len(request.prompt)) - chunk.start)
            self.served[request.tenant] += 2 * len(self.scheduler.commit(chunk, (1,) if chunk.samples else ()))
            if sequence.finish_reason is not None:
                self.scheduler.finish(sequence)
                self._open[request.tenant] -= 1
        self.scheduler.retire(plan)
        self.now += 1
        for habit in self.habits:
            self.history[habit.tenant].append(self.served[habit.tenant])
            still = any(sequence.request.tenant == habit.tenant for sequence in self.scheduler.waiting)
            self.backlogged[habit.tenant].append(waiting[habit.tenant] > 0 and still)
