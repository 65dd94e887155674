"""The answer as text, choice by choice, while its tokens arrive; and which of them the tenant pays for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenora_adapters.token_bytes import TokenBytes
from tenora_engine.wire import FinishReason, Output, TokenLogprob
from tenora_platform.gateway.detokenize import Detokenizer
from tenora_platform.gateway.plan import Plan
from tenora_platform.gateway.stops import StopMatcher


class Finish(StrEnum):
    """OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class Piece:
    """News of one choice. `text` can be "" (held back, or half a character) while tokens are there."""

    choice: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()  # one per token, only if log-probabilities were asked for
    finish: Finish | None = None
    prompt_tokens: tuple[TokenLogprob | None, ...] = ()  # once, with the choice's first piece, if asked for


class _Choice:
    """One choice's text. Nothing that comes after its end is looked at."""

    def __init__(self, token_bytes: TokenBytes, stops: Sequence[str], stop_token_ids: Collection[int]) -> None:
        self._stop_token_ids = stop_token_ids
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(stops)
        self.num_tokens = 0
        self.ended = False

    def push(self, choice: int, output: Output) -> Piece:
        text = ""
        finish: Finish | None = None
        taken = 0
        for token_id in output.token_ids:
            taken += 1
            if token_id in self._stop_token_ids and output.finish_reason is FinishReason.STOP:
                break  # the last one, and no text
            passed = self._stops.push(self._detokenizer.push(token_id))
            text += passed.text
            if passed.stopped:
                finish = Finish.STOP
                break
        self.num_tokens += taken
        if finish is None and output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            finish = Finish(output.finish_reason)
            text += self._stops.flush()
        self.ended = finish is not None
        return Piece(
            choice=choice,
            text=text,
            tokens=tuple(output.logprobs[:taken]) if output.logprobs else (),
            finish=finish,
            prompt_tokens=tuple(output.prompt_logprobs or ()),
        )


class Answer:
    """All choices of one request. Choice `j` of prompt `i` has the index `i * n + j`."""

    def __init__(self, plan: Plan, token_bytes: TokenBytes, stops: Sequence[str]) -> None:
        self._n = plan.sampling.n
        stop_token_ids = frozenset(plan.sampling.stop_token_ids)
        self._choices = [_Choice(token_bytes, stops, stop_token_ids) for _ in range(plan.num_choices)]
        self._num_received = 0

    @property
    def complete(self) -> bool:
        return all(choice.ended for choice in self._choices)

    def push(self, part: int, output: Output) -> Piece | None:
        """Raises nothing; None for what comes after a choice's end."""
        self._num_received += len(output.token_ids)
        index = part * self._n + output.choice
        choice = self._choices[index]
        return None if choice.ended else choice.push(index, output)

    def num_billed(self, num_generated: int) -> int:
        """Tokens to pay for, of the `num_generated` that the engine counted over all choices.

        What follows a stop string is not paid for. Tokens that the engine counted but never sent (it was told to
        stop) are, unless every choice had ended by then.
        """
        billed = sum(choice.num_tokens for choice in self._choices)
        return billed if self.complete else billed + max(0, num_generated - self._num_received)
