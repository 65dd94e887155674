"""Prompt look-up against a plain search of the whole text."""

from __future__ import annotations

import random

import pytest

from tenora_engine.ngram import NgramIndex


def search(tokens: list[int], shortest: int = 3, longest: int = 16) -> set[int]:
    """Where the longest earlier match of the last tokens goes on; several where equally long ones compete."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        tail = tokens[-length:]
        found = {end for end in range(length, len(tokens)) if tokens[end - length : end] == tail}
        if found:
            return found
    return set()


def test_the_continuation_of_the_longest_match() -> None:
    tokens = [1, 2, 3, 4, 5, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4]
    assert NgramIndex().guess(tokens, 3) == (5, 9, 2)  # 1 2 3 4 is longer than the later 2 3 4
    assert NgramIndex().guess([1, 2, 3, 4, 5], 3) == ()
    assert NgramIndex().guess([], 3) == ()
    assert NgramIndex().guess([7, 7], 3) == ()


def test_a_match_that_reaches_its_own_continuation_goes_round() -> None:
    assert NgramIndex().guess([1, 2, 1, 2, 1, 2, 1], 5) == (2, 1, 2, 1, 2)
    assert NgramIndex().guess([5, 5, 5, 5], 3) == (5, 5, 5)


@pytest.mark.parametrize("seed", range(20))
def test_grown_in_steps_of_any_size_it_finds_what_a_search_finds(seed: int) -> None:
    """Its guess always follows a real match; a match of the last eight places is never shorter than the best."""
    dice = random.Random(seed)
    vocabulary = dice.choice((2, 6, 40))
    index, tokens = NgramIndex(), []
    for _ in range(120):
        repeats = tokens and dice.random() < 0.4
        start = dice.randrange(len(tokens)) if repeats else 0
        tokens += tokens[start : start + dice.randint(1, 8)] if repeats else [dice.randrange(vocabulary)]
        guess = index.guess(tokens, 4)
        assert bool(guess) == bool(search(tokens))
        if guess:
            ends = [end for end in range(3, len(tokens)) if tokens[end - 3 : end] == tokens[-3:]]
            assert any(_goes_on(tokens, end, 4) == guess for end in ends)
            if len(ends) <= 8 and vocabulary == 40:
                assert any(_goes_on(tokens, end, 4) == guess for end in search(tokens))


def _goes_on(tokens: list[int], end: int, count: int) -> tuple[int, ...]:
    period = len(tokens) - end
    return tuple(tokens[end + offset % period] for offset in range(count))


def test_a_token_costs_the_same_however_long_the_text() -> None:
    """Counted, not timed: how often the list is looked at for one token more."""

    class Counting(list[int]):
        looks = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            Counting.looks += 1
            return super().__getitem__(key)

    def looks(length: int) -> int:
        dice = random.Random(length)
        index, tokens = NgramIndex(), Counting(dice.choices(range(5), k=length))
        index.guess(tokens, 4)
        most = 0
        for _ in range(50):
            Counting.looks = 0
            tokens.append(dice.randrange(5))
            index.guess(tokens, 4)
            most = max(most, Counting.looks)
        return most

    assert looks(20_000) <= 2 * looks(200)
