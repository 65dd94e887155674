from __future__ import annotations

import statistics
from itertools import islice, pairwise
from random import Random

import pytest

from tenora_platform.bench.arrivals import arrivals


def times(process: str, rate: float, count: int, seed: int = 1) -> list[float]:
    return list(islice(arrivals(process, rate, Random(seed)), count))


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert times("constant", 4.0, 4) == [0.0, 0.25, 0.5, 0.75]


def test_gaps_of_a_poisson_process_are_exponential() -> None:
    """The mean is 1 / rate, the deviation equals the mean, and e^-1 of the gaps are longer than the mean."""
    gaps = [later - earlier for earlier, later in pairwise(times("poisson", 5.0, 20_000))]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.03)
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)


def test_bursts_arrive_together_and_keep_the_rate() -> None:
    instants = times("bursts:8", 5.0, 16_000)
    groups = [instants[at : at + 8] for at in range(0, len(instants), 8)]
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) == len(groups)
    assert instants[-1] == pytest.approx(16_000 / 5.0, rel=0.06)


def test_the_same_seed_gives_the_same_times() -> None:
    assert times("poisson", 5.0, 50) == times("poisson", 5.0, 50)
    assert times("poisson", 5.0, 50) != times("poisson", 5.0, 50, seed=2)


@pytest.mark.parametrize(("process", "rate"), [("poisson", 0.0), ("bursts:0", 1.0), ("bursts", 1.0), ("gamma", 1.0)])
def test_what_is_no_process_is_refused(process: str, rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate|none of"):
        arrivals(process, rate, Random(1))
