"""Steps launched ahead of results: the same answers, and nothing that is touched by anybody else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from canaries import BASE, CanaryEngine, answer
from engine_under_test import ROUTE, Answer, EngineUnderTest, World, prompt

from tenora_engine.wire import FailCode, FinishReason

ADAPTERS = [BASE, *(f"{number:064x}" for number in (0x11 << 248, 0x22 << 248, 0x33 << 248))]


class Interleaving:
    """Requests, aborts, ids used again, preemptions, swaps, guesses and poison, when only the seed decides."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"interleaving {seed}")
        self.engine = CanaryEngine(
            seed, plan_ahead=seed % 5 > 0, num_host_blocks=12 if seed % 2 else 0, guess=seed % 3 == 0
        )
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
        self.seen["swapped"] += self.engine.scheduler.num_swaps
        self.seen["guessed"] += self.engine.guesses.num_right if self.engine.guesses else 0

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
    for event in ("preempted", "swapped", "guessed", "aborted in flight", "complete", "cached", FailCode.NUMERICAL):
        assert seen[event] > len(seeds) // 20, seen


def test_canaries_survive_seeded_interleavings() -> None:
    """CACHE-09: aborted, finished or preempted in the step in which it is scheduled, its blocks given to others at
    once, with a step launched ahead; also a failure there, and the same id used again."""
    interleave(range(1000))


@pytest.mark.long
@pytest.mark.timeout(900)  # a busy machine
def test_canaries_survive_many_seeded_interleavings() -> None:
    """CACHE-09, ten thousand seeds."""
    interleave(range(1000, 10_000))


ASKED: list[tuple[str | None, int, dict[str, Any]]] = [
    (None, 30, {"logprobs": 2}),
    ("r8", 70, {"temperature": 1.0, "seed": 1, "n": 3, "logprobs": 0}),
    ("r64", 9, {"temperature": 0.8, "seed": 2, "presence_penalty": 1.5, "frequency_penalty": 0.7, "top_p": 0.9}),
    ("r4", 40, {"repetition_penalty": 1.4, "logprobs": 1, "prompt_logprobs": 2}),
    ("r8", 17, {"temperature": 1.0, "seed": 4, "top_k": 20, "min_tokens": 5, "stop_token_ids": tuple(range(3, 20))}),
    (None, 55, {"max_tokens": 0, "prompt_logprobs": 1}),
    ("r1", 16, {"max_tokens": 1, "logprobs": 0}),
    (None, 33, {"temperature": 1.0, "seed": 9, "stop_token_ids": tuple(range(3, 10)), "min_p": 0.02}),
]


def ask_all(engine: EngineUnderTest, world: World) -> list[Answer]:
    """Some at once, the others while these run."""
    ids = []
    for index, (name, length, options) in enumerate(ASKED):
        ids.append(engine.submit(prompt(length, index), world.uses(name), **({"max_tokens": 50} | options)))
        for _ in range(3 * (index > 3)):
            engine.step_when_ready()
    answers = engine.finish()
    return [answers[request_id] for request_id in ids]


@pytest.mark.parametrize("options", [{}, {"kv_blocks": 14, "max_batch_tokens": 32, "adapter_slots": 2}], ids=str)
def test_a_step_ahead_says_what_steps_in_turn_say(
    make_engine: Callable[..., EngineUnderTest], world: World, options: dict[str, Any]
) -> None:
    """Tokens, log-probabilities, ends and usage; with chunks, preemption, eviction of adapters, stops."""
    engine = make_engine(async_step=True, **options)
    got = ask_all(engine, world)
    for ahead, in_turn in zip(got, ask_all(make_engine(async_step=False), world), strict=True):
        assert ahead.failed is None
        assert (ahead.tokens, ahead.finish, ahead.usage) == (in_turn.tokens, in_turn.finish, in_turn.usage)
        for choice, entries in in_turn.logprobs.items():
            values = [entry.logprob for entry in entries]
            assert [entry.logprob for entry in ahead.logprobs[choice]] == pytest.approx(values, abs=1e-4)
        prompts = [[e.logprob for e in (told.prompt_logprobs or [])[1:]] for told in (ahead, in_turn)]
        assert prompts[0] == pytest.approx(prompts[1], abs=1e-4)
    assert (engine.core.scheduler.num_preemptions > 0) == bool(options)
    engine.assert_at_rest()


def test_steps_are_really_launched_ahead(make_engine: Callable[..., EngineUnderTest]) -> None:
    """Plan, launch and commit interleave: step 2 is launched before step 1 is taken, and drawn after."""
    engine = make_engine(async_step=True)
    executor: Any = engine.engine.executor
    events: list[str] = []
    for name in ("launch", "draw", "take"):
        real = getattr(executor, name)

        def noted(*arguments: Any, name: str = name, real: Any = real) -> Any:
            plan = getattr(arguments[0], "plan", arguments[0])
            events.append(f"{name} {plan.number}")
            return real(*arguments)

        setattr(executor, name, noted)
    engine.ask(prompt(9), max_tokens=4)
    assert events[:9] == [
        *("launch 1", "draw 1", "launch 2", "take 1", "draw 2"),
        *("launch 3", "take 2", "draw 3", "launch 4"),
    ]
    assert [event for event in events if event.startswith("launch")] == [f"launch {n}" for n in (1, 2, 3, 4)]
