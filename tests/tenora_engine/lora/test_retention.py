"""What is worth keeping: the order of two adapters is that of the formulas, whenever it is asked for."""

from __future__ import annotations

from random import Random

from tenora_engine.lora.retention import HALF_LIFE_S, Retention


def test_the_order_is_that_of_faded_uses_times_cost_over_size():
    dice = Random(1)
    for _ in range(500):
        now, naive, found = 1000.0, [], []
        for _ in range(2):
            uses = sorted(dice.uniform(0, 900) for _ in range(dice.randint(1, 6)))
            load_s, size = dice.uniform(0.01, 2), dice.randint(1, 1000)
            kept = Retention(0.0, load_s)
            for at in uses:
                kept.use(at)
            naive.append(sum(0.5 ** ((now - at) / HALF_LIFE_S) for at in uses) * load_s / size)
            found.append(kept.worth(size))
        assert (naive[0] < naive[1]) == (found[0] < found[1])


def test_uses_long_ago_and_far_ahead_do_not_overflow():
    kept = Retention(0.0)
    assert kept.worth(1) < Retention(0.0, 1.0, 0.0).worth(1)  # never used
    for at in (0.0, 1e9, 1e9 + 1):
        kept.use(at)
    fresh = Retention(0.0)
    fresh.use(1e9 + 2)
    assert fresh.worth(1) < kept.worth(1)  # of two uses close together, two are worth more
