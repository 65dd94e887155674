"""An engine core whose model is memory alone: what it says depends on every cell of the KV cache that it may read.

A cell holds a hash of all cells before it, of its token and of the adapter that lay in the slot when it was written. A
cell that anybody else wrote, a block that was reused too early, an adapter that was exchanged under a launched step:
all of them change what is said next, and `answer`, which knows no blocks and no steps, does not say that.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from engine_under_test import ROUTE, Answer
from slots_double import Slots

from tenora_engine.admission import Capacity
from tenora_engine.core import EngineCore
from tenora_engine.drawing import ChunkResult, Draw, Failure, accepted
from tenora_engine.executor import StepResults
from tenora_engine.kv.prefix_cache import PrefixCache
from tenora_engine.layout import Part
from tenora_engine.lora.loader import Event, Fetched, Placed, Read
from tenora_engine.lora.residency import Residency, Room
from tenora_engine.sampler import Sampled
from tenora_engine.scheduler import Limits, Plan, Scheduler, SwapCost
from tenora_engine.wire import AdapterUse, FailCode, Sampling, Submit

VOCAB, END, BLOCK = 40, 2, 4
BASE = "base"
NOT_FINITE = Failure(FailCode.NUMERICAL, "not finite")


def write(before: Sequence[int], token: int, adapter: str) -> int:
    """A cell's content: `hash` of numbers is the same in every process."""
    return hash((*before, token, int(adapter[:8], 16) if adapter != BASE else 0))


def said(cells: Sequence[int]) -> int:
    """The token after these cells; the end token about once in sixteen."""
    drawn = hash((len(cells), *cells)) % (VOCAB + 2)
    return drawn if drawn < VOCAB else END


def answer(prompt: Sequence[int], adapter: str, max_tokens: int) -> list[int]:
    """What the model says, without an engine."""
    cells: list[int] = []
    for token in prompt:
        cells.append(write(cells, token, adapter))
    tokens: list[int] = []
    while len(tokens) < max_tokens and END not in tokens:
        tokens.append(said(cells))
        cells.append(write(cells, tokens[-1], adapter))
    return tokens


@dataclass(eq=False)
class _Launch:
    plan: Plan
    parts: list[Part]
    results: StepResults | None = None


class CanaryExecutor:
    """Does what is launched in order, but only when the dice say so, or when its results are asked for."""

    def __init__(self, num_blocks: int, num_host_blocks: int, slots: dict[int, str], dice: random.Random) -> None:
        self.cells = [[0] * BLOCK for _ in range(num_blocks + 1)]
        self.host = [[0] * BLOCK for _ in range(num_host_blocks + 1)]
        self.poisoned: set[str] = set()  # request ids whose next values are not finite
        self.slot_of: Callable[[str], int]
        self._slots = slots
        self._dice = dice
        self._queue: deque[Callable[[], None]] = deque()
        self._last: dict[Any, int] = {}

    def launch(self, plan: Plan) -> _Launch:
        launch = _Launch(plan, [Part.of(chunk, BLOCK, self.slot_of) for chunk in plan.chunks])
        self._queue.append(lambda: self._compute(launch))
        self._dawdle()
        return launch

    def draw(self, launch: _Launch, draws: Sequence[Draw]) -> None:
        self._queue.append(lambda: self._draw(launch, draws))
        self._dawdle()

    def take(self, launch: _Launch) -> StepResults:
        while launch.results is None:
            self._queue.popleft()()
        self._dawdle()
        return launch.results

    def _dawdle(self) -> None:
        while self._queue and self._dice.random() < 0.4:
            self._queue.popleft()()

    def _compute(self, launch: _Launch) -> None:
        out = [(swap.host, list(self.cells[swap.device])) for swap in launch.plan.swap_out]
        for host, cells in out:
            self.host[host] = cells
        for swap in launch.plan.swap_in:
            self.cells[swap.device] = list(self.host[swap.host])
        copied = [(copy.target, list(self.cells[copy.source])) for copy in launch.plan.copies]
        for target, cells in copied:
            self.cells[target] = cells
        for part in launch.parts:
            if part.unknown is not None:
                part.tokens[part.unknown] = self._last.get(part.chunk.sequence, 0)
            for position, token in enumerate(part.tokens, part.chunk.start):
                cell = write(self._read(part, position), token, self._adapter(part))
                self.cells[part.blocks[position // BLOCK]][position % BLOCK] = cell

    def _draw(self, launch: _Launch, draws: Sequence[Draw]) -> None:
        results = []
        for draw in draws:
            chunk = draw.part.chunk
            if draw.rows and chunk.sequence.request.key.request_id in self.poisoned:
                results.append(ChunkResult(chunk, failure=NOT_FINITE))
                continue
            first = chunk.end - len(chunk.drafts)
            drawn = [Sampled(said(self._read(draw.part, first + len(row.drafts))), None) for row in draw.rows]
            results.append(ChunkResult(chunk, accepted(chunk.drafts, drawn)))
        self._last = {result.chunk.sequence: result.drawn[-1].token_id for result in results if result.drawn}
        launch.results = StepResults(results, 0.0)

    def _read(self, part: Part, end: int) -> list[int]:
        return [self.cells[part.blocks[position // BLOCK]][position % BLOCK] for position in range(end)]

    def _adapter(self, part: Part) -> str:
        return self._slots[part.adapters[0].slot] if part.adapters else BASE


class _Loader:
    """Has done a job one or two looks after it was asked for."""

    def __init__(self, dice: random.Random) -> None:
        self._asked: list[Event] = []
        self._dice = dice

    def fetch(self, digest: str) -> None:
        self._asked.append(Fetched(digest, 1))

    def read(self, digest: str) -> None:
        weights: Any = SimpleNamespace(num_bytes=1, name=digest, invocation=None)
        self._asked.append(Read(digest, weights, 0.0))

    def place(self, digest: str, weights: Any) -> None:
        self._asked.append(Placed(digest, weights.name))

    def poll(self) -> list[Event]:
        ready = [event for event in self._asked if self._dice.random() < 0.5]
        self._asked = [event for event in self._asked if event not in ready]
        return ready


class _NoGrammars:
    def want(self, request: Any, grammar: Any) -> None:
        pass

    def forget(self, request: Any) -> None:
        pass

    def collect(self) -> list[Any]:
        return []


class _Guesses:
    """A drafter that knows the answer and is wrong now and then."""

    def __init__(self, dice: random.Random) -> None:
        self.num_right = 0
        self._dice = dice
        self.cost = self

    def propose(self, sequence: Any, limit: int) -> tuple[int, ...]:
        adapters = sequence.request.adapters
        said_before = len(sequence.tokens) - len(sequence.request.prompt)
        tokens = answer(sequence.request.prompt, adapters[0].digest if adapters else BASE, said_before + limit)
        guess = [token if self._dice.random() < 0.8 else 5 for token in tokens[said_before:]]
        return tuple(guess[: self._dice.randint(0, 4)])

    def pays(self, sequences: Any) -> bool:
        return self._dice.random() < 0.5

    def learn(self, sequence: Any, num_taken: int, num_drafts: int) -> None:
        self.num_right += num_taken - 1

    def observe(self, num_tokens: int, num_drawn: int, seconds: float) -> None:
        pass

    def forget(self, sequence: Any) -> None:
        pass

    def take_failed(self) -> list[Any]:
        return []


class CanaryEngine:
    """A core with scheduler, prefix cache and residency as they are, and the model above."""

    def __init__(
        self, seed: int, *, num_blocks: int = 14, num_host_blocks: int = 0, plan_ahead: bool = True, guess: bool = False
    ) -> None:
        num_slots = 2
        self.dice = random.Random(seed)
        slots: Any = Slots()
        self.cache = PrefixCache(num_blocks, BLOCK)
        self.executor = CanaryExecutor(num_blocks, num_host_blocks, slots.content, self.dice)
        self.residency = Residency(slots, Room(num_slots, num_slots + 1), _Loader(self.dice), lambda: 0.0)
        self.executor.slot_of = self.residency.slot_of
        self.guesses: Any = _Guesses(self.dice) if guess else None
        self.scheduler = Scheduler(
            Limits(max_sequences=4, max_batch_tokens=12),
            self.cache,
            self.residency,
            self.guesses,
            host_blocks=num_host_blocks,
            swap_cost=SwapCost(tokens_per_block=1.0),
        )
        capacity = Capacity("base", VOCAB, frozenset({END}), 60, num_blocks * BLOCK, "canary", num_slots)
        doubles: dict[str, Any] = {"grammars": _NoGrammars(), "executor": self.executor}
        self.core = EngineCore(
            capacity=capacity,
            scheduler=self.scheduler,
            residency=self.residency,
            clock=lambda: 0.0,
            max_waiting=64,
            plan_ahead=plan_ahead,
            speculator=self.guesses,
            **doubles,
        )
        self.answers: list[Answer] = []
        self._by_id: defaultdict[str, list[Answer]] = defaultdict(list)

    def submit(self, request_id: str, prompt: list[int], adapter: str = BASE, **sampling: Any) -> Answer:
        """The answer that will be; an id may come again when it has ended."""
        uses = () if adapter == BASE else (AdapterUse(adapter),)
        options = {"temperature": 0.0, "stop_token_ids": (END,)} | sampling
        self.answers.append(Answer())
        self._by_id[request_id].append(self.answers[-1])
        self.core.submit(Submit(request_id, prompt, Sampling(**options), "t", b"salt", "base", uses), ROUTE)
        return self.answers[-1]

    def step(self) -> None:
        for news in self.core.step().values():
            for event in [*news.outputs, *news.failures]:
                next(a for a in self._by_id[event.request_id] if not a.num_terminal).take(event)

    def finish(self) -> None:
        for _ in range(3000):
            if not self.core.has_requests:
                break
            self.step()
        assert not self.core.has_requests, "requests that never end"
        self.step()
        self.step()

    def assert_at_rest(self) -> None:
        assert not self.scheduler.has_sequences
        assert self.cache.pool.num_free == self.cache.pool.num_blocks
        assert self.scheduler.host_pool.num_free == self.scheduler.host_pool.num_blocks
        assert self.residency.num_pins == 0
