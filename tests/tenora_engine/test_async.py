"""Steps launched ahead of results: the same answers, and nothing that is touched by anybody else."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from canaries import BASE, CanaryEngine, answer
from engine_under_test import ROUTE, Answer

from tenora_engine.wire import FailCode, FinishReason

ADAPTERS = [BASE, *(f"{number:064x}" for number in (0x11 << 248, 0x22 << 248, 0x33 << 248))]


class Interleaving:
    """Requests, aborts, ids used again, preemptions and poison, at moments that only the seed decides."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"interleaving {seed}")
        self.engine = CanaryEngine(seed, plan_ahead=seed % 5 > 0)
        self.asked: list[tuple[Answer, str, list[int], str, int]] = []
        self.seen: Counter[str] = Counter()
        stems = [self.dice.choices(range(3, 40), k=self.dice.randint(1, 22)) for _ in range(3)]
        for _ in range(40):
            self._act(stems)
        self.engine.finish()
        self.engine.assert_at_rest()
        for each in self.asked:
            self._check(*each)
        self.seen["preempted"] += self.engine.scheduler.num_preemptions

    def _act(self, stems: list[list[int]]) -> None:
        core, scheduler, dice = self.engine.core, self.engine.scheduler, self.dice
        live = [request.key.request_id for request in core._live]
        running = list(scheduler.running)
        match dice.randrange(12):
            case 0 | 1 | 2:
                self._submit(f"request-{len(self.asked)}", stems)
            case 3 if live:
                self._abort(dice.choice(live))
            case 4 if live:
                again = dice.choice(live)
                self._abort(again)
                self._submit(again, stems)
            case 5 if running:
                scheduler.preempt(dice.choice(running))
            case 6 if live and dice.random() < 0.3:
                self.engine.executor.poisoned.add(dice.choice(live))
            case _:
                self.engine.step()

    def _submit(self, request_id: str, stems: list[list[int]]) -> None:
        prompt = self.dice.choice(stems) + self.dice.choices(range(3, 40), k=self.dice.choice((0, 0, 1, 5)))
        adapter, length = self.dice.choice(ADAPTERS), self.dice.randint(1, 14)
        told = self.engine.submit(request_id, prompt, adapter, max_tokens=length)
        self.asked.append((told, request_id, prompt, adapter, length))

    def _abort(self, request_id: str) -> None:
        ahead = self.engine.core._ahead
        if ahead is not None and any(
            chunk.sequence.request.key.request_id == request_id for chunk in ahead.plan.chunks
        ):
            self.seen["aborted in flight"] += 1
        self.engine.core.abort(ROUTE, request_id)

    def _check(self, told: Answer, request_id: str, prompt: list[int], adapter: str, length: int) -> None:
        assert told.num_terminal == 1
        expected, tokens = answer(prompt, adapter, length), told.tokens[0]
        assert tokens == expected[: len(tokens)], f"{request_id}: {tokens} instead of {expected}"
        assert told.usage is not None
        assert told.usage.completion == len(tokens)
        if told.failed is not None:
            codes = {FailCode.NUMERICAL, FailCode.ADAPTER_UNAVAILABLE} if self.engine.executor.poisoned else set()
            assert told.failed.code in codes
            self.seen[told.failed.code] += 1
        elif told.finish[0] is not FinishReason.ABORT:
            assert tokens == expected
            self.seen["complete"] += 1
        self.seen["cached"] += told.usage.cached > 0


def interleave(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += Interleaving(seed).seen
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    # Else the test would be void.
    for event in ("preempted", "aborted in flight", "complete", "cached", FailCode.NUMERICAL):
        assert seen[event] > len(seeds) // 20, seen


def test_canaries_survive_seeded_interleavings() -> None:
    """CACHE-09: aborted, finished or preempted in the step in which it is scheduled, its blocks given to others at
    once, with a step launched ahead; also a failure there, and the same id used again."""
    interleave(range(1000))


@pytest.mark.long
def test_canaries_survive_many_seeded_interleavings() -> None:
    """CACHE-09, ten thousand seeds."""
    interleave(range(1000, 10_000))
