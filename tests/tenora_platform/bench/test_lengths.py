from __future__ import annotations

import statistics
from random import Random

import pytest

from tenora_platform.bench.lengths import parse_lengths


def draws(text: str, count: int = 20_000) -> list[int]:
    draw, random = parse_lengths(text), Random(1)
    return [draw(random) for _ in range(count)]


def test_a_number_is_that_length() -> None:
    assert set(draws("128", 10)) == {128}


def test_uniform_lengths_reach_both_ends() -> None:
    lengths = draws("uniform:3-6")
    assert set(lengths) == {3, 4, 5, 6}
    assert [lengths.count(length) / len(lengths) for length in (3, 4, 5, 6)] == pytest.approx([0.25] * 4, abs=0.01)


def test_normal_lengths_have_their_mean_and_deviation() -> None:
    lengths = draws("normal:200,20")
    assert statistics.mean(lengths) == pytest.approx(200, abs=1)
    assert statistics.stdev(lengths) == pytest.approx(20, rel=0.05)


def test_lognormal_lengths_have_their_mean_and_a_tail() -> None:
    lengths = draws("lognormal:200,0.8")
    assert statistics.mean(lengths) == pytest.approx(200, rel=0.03)
    assert statistics.median(lengths) == pytest.approx(200 * 2.71828 ** (-(0.8**2) / 2), rel=0.03)


def test_a_length_is_at_least_one_token() -> None:
    assert min(draws("normal:2,5")) == 1


@pytest.mark.parametrize(
    "text", ["0", "-3", "x", "uniform:6-3", "uniform:0-3", "normal:5", "lognormal:0.5,1", "zipf:1", ""]
)
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no length"):
        parse_lengths(text)
