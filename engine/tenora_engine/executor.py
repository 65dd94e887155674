"""Launched steps, computed in order on a thread of their own, so that the core plans and commits meanwhile.

    core       launch 1, draw 1 | launch 2 .. take 1 | commit 1, draw 2 | launch 3 .. take 2 | commit 2, draw 3 | ...
    executor   compute 1, draw 1, compute 2 .......................... draw 2, compute 3 ........................ ...

A step is computed as soon as the one before it is drawn: of the tokens that only that one knows, the executor puts the
last one of each sequence in itself. It is drawn when the core says so, which is when the step before is committed: then
the sampler and the grammars see sequences that know all their tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch

from tenora_engine.block_copies import BlockCopies
from tenora_engine.drawing import ChunkResult, Draw, Failure
from tenora_engine.layout import Layout, Part, lay_out
from tenora_engine.request import Sequence as Choice
from tenora_engine.runner import Computed, Runner
from tenora_engine.scheduler import Plan
from tenora_engine.wire import FailCode

log = logging.getLogger(__name__)

NOT_COMPUTED: Final = Failure(FailCode.INTERNAL, "the engine failed to compute this request")


@dataclass(frozen=True, slots=True)
class StepResults:
    chunks: Sequence[ChunkResult]  # one for each draw
    seconds: float  # from the start of its computation to its last token


@dataclass(eq=False, slots=True)
class Launch:
    """A step on its way. The core looks at `parts` only."""

    plan: Plan
    parts: Sequence[Part]
    layout: Layout
    copied: bool = False
    computed: Computed | None = None
    began: float = 0.0
    computing: Future[None] | None = None
    drawing: Future[StepResults] | None = None


class Executor:
    """For each step: `launch`, `draw`, `take`. The next may be launched as soon as a step is to be drawn."""

    def __init__(
        self,
        runner: Runner,
        copies: BlockCopies,
        block_size: int,
        slot_of: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        """`slot_of` gives the slot of an adapter's digest; every adapter of a planned chunk is pinned."""
        self._runner = runner
        self._copies = copies
        self._block_size = block_size
        self._slot_of = slot_of
        self._clock = clock
        num_threads = torch.get_num_threads()  # which torch keeps for each thread
        self._thread = ThreadPoolExecutor(1, "executor", lambda: torch.set_num_threads(num_threads))
        self._last_drawn: dict[Choice, int] = {}  # by the step that was drawn last; the executor thread's own

    def launch(self, plan: Plan) -> Launch:
        """Have a plan computed. What is needed of its sequences is taken along: they may change from now on."""
        parts = [Part.of(chunk, self._block_size, self._slot_of) for chunk in plan.chunks]
        launch = Launch(plan, parts, lay_out(parts, self._block_size))
        launch.computing = self._thread.submit(self._compute, launch)
        return launch

    def draw(self, launch: Launch, draws: Sequence[Draw]) -> None:
        """All before this step is committed. Draw these; nobody wants the other parts any more."""
        launch.drawing = self._thread.submit(self._draw, launch, draws)

    def take(self, launch: Launch) -> StepResults:
        """Wait for what was drawn. Raises what no single request is to blame for: then the engine cannot go on."""
        assert launch.computing is not None
        assert launch.drawing is not None
        launch.computing.result()
        return launch.drawing.result()

    def close(self) -> None:
        """Returns when all that was launched has ended."""
        self._thread.shutdown()

    # -- on the executor's thread ---------------------------------------------------------------------------------

    def _compute(self, launch: Launch) -> None:
        launch.began = self._clock()
        for part in launch.parts:
            if part.unknown is not None:
                # A sequence of which nothing was drawn has ended: whatever this computes for it is dropped.
                part.tokens[part.unknown] = self._last_drawn.get(part.chunk.sequence, 0)
        try:
            self._copy(launch)
            if launch.parts:
                launch.computed = self._runner.forward(launch.layout)
        except Exception:  # whatever one chunk brings, the others are to be served
            log.exception("computing a step of %d chunks failed; its chunks are tried alone", len(launch.parts))

    def _draw(self, launch: Launch, draws: Sequence[Draw]) -> StepResults:
        self._copy(launch)
        results = self._draw_together(launch, draws) or [self._run_alone(draw) for draw in draws]
        launch.computed = None
        self._last_drawn = {result.chunk.sequence: result.drawn[-1].token_id for result in results if result.drawn}
        return StepResults(results, self._clock() - launch.began)

    def _copy(self, launch: Launch) -> None:
        """Once, before anything is computed, which would change what is to be copied."""
        if not launch.copied:
            self._copies.run(launch.plan)
            launch.copied = True

    def _draw_together(self, launch: Launch, draws: Sequence[Draw]) -> list[ChunkResult]:
        """Nothing when that cannot be done."""
        if launch.computed is None:
            return []
        try:
            return self._runner.draw(launch.computed, draws)
        except Exception:  # as above
            log.exception("drawing a step of %d chunks failed; its chunks are tried alone", len(draws))
        return []

    def _run_alone(self, draw: Draw) -> ChunkResult:
        chunk = draw.part.chunk
        try:
            (result,) = self._runner.draw(self._runner.forward(lay_out([draw.part], self._block_size)), [draw])
        except Exception:  # the one at fault
            log.exception("request %s could not be computed", chunk.sequence.request.key.request_id)
            return ChunkResult(chunk, failure=NOT_COMPUTED)
        return result
