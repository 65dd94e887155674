from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tenora_platform.bench.weights import Weighted, parse_weights


def test_zipf_weights_fall_with_the_rank() -> None:
    assert parse_weights("zipf:1.0", 4) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert parse_weights("zipf:2", 3) == pytest.approx([1, 1 / 4, 1 / 9])
    assert parse_weights("uniform", 3) == [1, 1, 1]


def test_things_are_drawn_in_proportion() -> None:
    """Of 200 adapters under Zipf 1.0 the first has a share of 1 / H(200) = 17.0 %."""
    weighted, random = Weighted(range(200), parse_weights("zipf:1.0", 200)), Random(1)
    drawn = Counter(weighted.draw(random) for _ in range(40_000))
    assert drawn[0] / 40_000 == pytest.approx(0.170, abs=0.006)
    assert drawn[1] / 40_000 == pytest.approx(0.085, abs=0.005)
    assert len(drawn) == 200


@pytest.mark.parametrize("text", ["zipf", "pareto:1", "zipf:x", "zipf:-1", "zipf:nan"])
def test_what_is_no_weighting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="none of"):
        parse_weights(text, 3)


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0]])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Weighted(range(len(weights)), weights)
