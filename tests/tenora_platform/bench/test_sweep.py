from __future__ import annotations

from collections.abc import Callable

import pytest

from tenora_platform.bench.sweep import Search


def tried(search: Search, meets: Callable[[float], bool]) -> list[float]:
    rates = []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.tell(rate, met=meets(rate))
    return rates


@pytest.mark.parametrize("truth", [0.11, 0.9, 1.0, 5.3, 37.0])
def test_the_highest_rate_is_found_within_the_tolerance(truth: float) -> None:
    search = Search(start=1.0, tolerance=0.1, max_trials=20)
    tried(search, lambda rate: rate <= truth)
    assert search.converged
    assert search.best is not None
    assert truth / 1.1 <= search.best <= truth


def test_it_doubles_to_a_bracket_and_then_halves_it() -> None:
    assert tried(Search(1.0, max_trials=5), lambda rate: rate <= 5.0) == pytest.approx([1, 2, 4, 8, 32**0.5])


def test_it_goes_down_when_the_start_is_too_much() -> None:
    assert tried(Search(8.0, max_trials=4), lambda rate: rate <= 2.5) == pytest.approx([8, 4, 2, 8**0.5])


def test_a_server_that_meets_everything_ends_it_too() -> None:
    search = Search(1.0, max_trials=4)
    assert len(tried(search, lambda _: True)) == 4
    assert search.best == 8.0
    assert not search.converged


def test_a_server_that_meets_nothing_has_no_rate() -> None:
    search = Search(1.0, max_trials=4)
    assert len(tried(search, lambda _: False)) == 4
    assert search.best is None
    assert not search.converged
