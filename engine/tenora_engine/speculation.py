"""Which tokens to guess, and when a guess is worth its computation. Pure policy: no torch, no clock.

A guess never changes an answer: each is verified by drawing at its position as if nobody had guessed (`drawing`). So
everything here is about time. A guess costs one more position in a step; it brings a token if it is right and so are
all before it. With p the share of right guesses and `price` the tokens that the engine makes in the time of one more
position, the k-th guess pays while p^k > price. Few sequences at once: a position is cheap, guesses are long. A full
batch: the price nears 1, and nothing is guessed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Final

from tenora_engine.ngram import NgramIndex
from tenora_engine.request import Constraint, Sequence

log = logging.getLogger(__name__)

# How fast old guesses are forgotten: by half in about eleven.
_DECAY: Final = 15 / 16
# Above this price no guess pays that could be made in practice: not even its bookkeeping.
_HOPELESS: Final = 0.95
# What planning the next step ahead saves, as a share of a step (ADR 7): guessing forgoes it.
_AHEAD_GAIN: Final = 0.05


@dataclass(slots=True)
class _Mean:
    """Of steps of one size."""

    tokens: float  # computed
    drawn: float
    seconds: float


class StepCost:
    """What steps cost and bring, by their number of tokens: a running mean for each power of two, as measured."""

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}
        self.price = 1.0

    def observe(self, num_tokens: int, num_drawn: int, seconds: float) -> None:
        """A step computed `num_tokens` positions and gave `num_drawn` tokens; `price` is that of steps like it."""
        mean = self._means.setdefault(num_tokens.bit_length(), _Mean(num_tokens, num_drawn, seconds))
        mean.tokens += (num_tokens - mean.tokens) / 8
        mean.drawn += (num_drawn - mean.drawn) / 8
        mean.seconds += (seconds - mean.seconds) / 8
        tokens_per_s = mean.drawn / max(mean.seconds, 1e-9)
        self.price = min(1.0, tokens_per_s * self._seconds_per_token(num_tokens.bit_length()))

    def _seconds_per_token(self, size: int) -> float:
        """For one token more: the slope to the next larger steps that were seen, else the average."""
        here = self._means[size]
        larger = [other for other in self._means if other > size]
        if not larger:
            return here.seconds / here.tokens
        there = self._means[min(larger)]
        return max(0.0, (there.seconds - here.seconds) / (there.tokens - here.tokens))


@dataclass(slots=True)
class _Share:
    """The share of events that went well, the latest counting most; one of each to begin with."""

    good: float = 1.0
    bad: float = 1.0

    def count(self, good: bool) -> None:
        self.good = self.good * _DECAY + good
        self.bad = self.bad * _DECAY + (not good)

    @property
    def value(self) -> float:
        return self.good / (self.good + self.bad)


@dataclass(slots=True)
class _Track:
    """What is known of one sequence. Guesses are judged by what was drawn, whether they were computed or not."""

    index: NgramIndex = field(default_factory=NgramIndex)
    seen: int = 0  # tokens of the sequence when `guess` was made
    guess: tuple[int, ...] = ()
    forced: bool = False  # by the grammar, not found in the text
    right_forced: _Share = field(default_factory=_Share)  # of the guesses of each kind
    right_found: _Share = field(default_factory=_Share)
    foretold: _Share = field(default_factory=_Share)  # of all tokens

    @property
    def right(self) -> _Share:
        return self.right_forced if self.forced else self.right_found


class Speculator:
    """The scheduler's drafter. Forced text of a grammar comes first, then what followed the same tokens earlier on.

    `tokenize` gives the base's tokens of a text; its grammar's exceptions are one request's end (`take_failed`).
    """

    def __init__(self, max_drafts: int, tokenize: Callable[[str], list[int]], cost: StepCost | None = None) -> None:
        assert max_drafts > 0
        self.cost = cost or StepCost()
        self.num_proposed = 0
        self.num_accepted = 0
        self._failed: list[Sequence] = []
        self._max_drafts = max_drafts
        self._tokenize = tokenize
        self._tracks: dict[Sequence, _Track] = {}

    def propose(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may come next. All tokens of the sequence are known."""
        if self.cost.price >= _HOPELESS:
            return ()
        track = self._look(sequence)
        return track.guess[: min(limit, self._worthwhile(track.right.value))]

    def learn(self, sequence: Sequence, num_taken: int, num_drafts: int) -> None:
        """The sequence's last `num_taken` tokens are new; `num_drafts` had been guessed for the step."""
        self.num_proposed += num_drafts
        self.num_accepted += min(num_drafts, num_taken - 1)
        track = self._tracks.get(sequence)
        if track is None or track.seen != len(sequence.tokens) - num_taken:
            return
        taken = sequence.tokens[track.seen :]
        for position, token in enumerate(taken):
            guessed = position < len(track.guess)
            right = guessed and track.guess[position] == token
            track.foretold.count(right)
            if guessed:
                track.right.count(right)
            if not right:
                break

    def pays(self, sequences: Many[Sequence]) -> bool:
        """Whether guesses bring these sequences more than planning their next step ahead of their tokens would."""
        price = self.cost.price
        if price >= _HOPELESS:
            return False
        gain = sum(max(0.0, self._look(sequence).foretold.value - price) for sequence in sequences)
        return gain > _AHEAD_GAIN * len(sequences)

    def forget(self, sequence: Sequence) -> None:
        self._tracks.pop(sequence, None)

    def take_failed(self) -> list[Sequence]:
        """Sequences whose guessing raised since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def _look(self, sequence: Sequence) -> _Track:
        """The sequence's track, with a guess at what follows its last known token."""
        track = self._tracks.get(sequence)
        if track is None:
            track = self._tracks[sequence] = _Track()
        if track.seen != len(sequence.tokens):
            track.seen = len(sequence.tokens)
            try:
                forced = self._forced(sequence.constraint) if sequence.constraint is not None else ()
                track.forced = bool(forced)
                track.guess = forced or track.index.guess(sequence.tokens, self._max_drafts)
            except Exception:  # whatever one sequence brings, the others are to be served
                log.exception("request %s: guessing failed", sequence.request.key.request_id)
                track.guess = ()
                self._failed.append(sequence)
        return track

    def _forced(self, constraint: Constraint) -> tuple[int, ...]:
        text = constraint.forced_text()
        return tuple(self._tokenize(text)[: self._max_drafts]) if text else ()

    def _worthwhile(self, right: float) -> int:
        """How many guesses pay when each is right with this probability."""
        count = 0
        while count < self._max_drafts and right ** (count + 1) > self.cost.price:
            count += 1
        return count
