"""Fair shares: the counters alone, then the real scheduler in a simulation, with the paper's bound and without."""

from __future__ import annotations

import pytest
from simulator import Habit, Simulation

from tenora_engine.fairness import Fairness, Prices
from tenora_engine.wire import Priority

UNFAIR = Prices(input_weight=0.0, output_weight=0.0)  # all counters stay equal: in order of arrival, more or less


# -- counters ---------------------------------------------------------------------------------------------------------


def test_service_counts_by_price_and_weight():
    fairness = Fairness(Prices(input_weight=1.0, output_weight=2.0))
    light, heavy = fairness.arrive("light", 1.0), fairness.arrive("heavy", 4.0)
    for tenant in (light, heavy):
        fairness.charge_input(tenant, 12)
        fairness.charge_output(tenant, 4)
    assert (light.counter, heavy.counter) == (20.0, 5.0)


def test_being_away_earns_no_credit():
    """Whoever comes back is lifted to the least served of those that wait; never lowered."""
    fairness = Fairness()
    busy, other = fairness.arrive("busy", 1.0), fairness.arrive("other", 1.0)
    for tenant, tokens in ((busy, 100), (other, 300)):
        fairness.wait(tenant)
        fairness.charge_input(tenant, tokens)
    assert fairness.arrive("new", 1.0).counter == 100.0
    assert fairness.arrive("other", 1.0).counter == 300.0


def test_when_nobody_waits_it_is_the_last_that_did():
    fairness = Fairness()
    last = fairness.arrive("last", 1.0)
    fairness.wait(last)
    fairness.leave(last)
    fairness.charge_input(last, 50)
    assert fairness.arrive("new", 1.0).counter == 50.0


def test_only_some_idle_tenants_are_remembered():
    fairness = Fairness(max_idle=10)
    busy = fairness.arrive("busy", 1.0)
    fairness.wait(busy)
    for index in range(100):
        fairness.charge_input(fairness.arrive(f"t{index}", 1.0), index)
    assert len(fairness) <= 1 + 10 + 1
    assert fairness["busy"] is busy


# -- simulation -------------------------------------------------------------------------------------------------------


def spread(simulation: Simulation, first: Habit, second: Habit) -> float:
    """The largest difference over any interval in which both always have something waiting, of the service that each
    receives in it for its weight."""
    largest, low, high = 0.0, float("inf"), float("-inf")
    rows = zip(
        simulation.history[first.tenant],
        simulation.history[second.tenant],
        simulation.backlogged[first.tenant],
        simulation.backlogged[second.tenant],
        strict=True,
    )
    for one, other, one_waits, other_waits in rows:
        if not (one_waits and other_waits):
            low, high = float("inf"), float("-inf")
            continue
        difference = one / first.weight - other / second.weight
        low, high = min(low, difference), max(high, difference)
        largest = max(largest, high - low)
    return largest


def bound(simulation: Simulation, *habits: Habit) -> float:
    """2 max(w_in L_input, w_out M), for the smallest weight."""
    longest = max(habit.prompt[1] for habit in habits)
    room = simulation.blocks * 4
    return 2 * max(1.0 * longest, 2.0 * room) / min(habit.weight for habit in habits)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("lead", [0.0, 500.0])
def test_two_backlogged_tenants_stay_within_the_proved_bound(seed: int, weight: float, lead: float):
    """However different their requests are and however much one sends: the paper's bound, over any interval."""
    one = Habit("one", per_step=1.0, prompt=(60, 100), output=(2, 10), weight=weight)
    other = Habit("other", per_step=10.0, prompt=(4, 12), output=(20, 60), max_open=200)
    simulation = Simulation([one, other], blocks=64, sequences=16, seed=seed, lead=lead).run(600)
    assert sum(simulation.backlogged["one"]) > 500  # else nothing is shown
    assert 0 < spread(simulation, one, other) <= bound(simulation, one, other) + lead


def test_without_a_limit_small_requests_pass_a_large_one_beyond_the_bound():
    """The control of the lead."""
    one = Habit("one", per_step=1.0, prompt=(60, 100), output=(2, 10))
    other = Habit("other", per_step=10.0, prompt=(4, 12), output=(20, 60), max_open=200)
    simulation = Simulation([one, other], blocks=64, sequences=16, lead=float("inf")).run(600)
    assert spread(simulation, one, other) > 2 * bound(simulation, one, other)


def test_without_counters_the_bound_does_not_hold():
    """The control: the same load in order of arrival."""
    one = Habit("one", per_step=1.0, prompt=(60, 100), output=(2, 10))
    other = Habit("other", per_step=10.0, prompt=(4, 12), output=(20, 60), max_open=200)
    simulation = Simulation([one, other], blocks=64, sequences=16, prices=UNFAIR).run(600)
    assert spread(simulation, one, other) > bound(simulation, one, other)


def service_beside(factor: float, prices: Prices) -> float:
    """What a tenant that sends somewhat less than half of what the engine can do gets beside one that sends `factor`
    times as much as it."""
    quiet = Habit("quiet", per_step=0.2)
    loud = Habit("loud", per_step=0.2 * factor, max_open=500)
    return Simulation([quiet, loud], prices=prices).run(1500).served["quiet"]


def test_ten_times_ones_share_costs_another_tenant_little():
    assert service_beside(10, Prices()) > 0.9 * service_beside(1, Prices())
    assert service_beside(10, UNFAIR) < 0.9 * service_beside(1, UNFAIR)  # the control


def test_the_batch_class_is_not_starved():
    """Interactive requests beyond what the engine can do; each batch tenant has a turn in each round of turns."""
    batch = [Habit(f"batch{i}", per_step=1.0, priority=Priority.BATCH, max_open=1) for i in range(3)]
    flood = Habit("flood", per_step=2.0, max_open=300)
    simulation = Simulation([flood, *batch], batch_patience_s=50.0).run(2000)
    # A turn every 50 seconds, three tenants, and up to 40 seconds until a sequence ends and makes room.
    for habit in batch:
        assert len(simulation.waits(habit.tenant)) > 2000 / (3 * 50 + 40 + 40)
        assert max(simulation.waits(habit.tenant)) <= 3 * 50 + 40
    assert simulation.served["flood"] > 10 * sum(simulation.served[habit.tenant] for habit in batch)


def test_no_adapter_is_passed_for_ever():
    """Two tenants keep all slots in use; a third one's adapter has a slot after its patience and the longest answer."""
    busy = [Habit(f"busy{i}", per_step=2.0, output=(4, 20), adapters=(f"a{i}", f"b{i}"), max_open=60) for i in range(2)]
    rare = Habit("rare", per_step=0.05, adapters=("rare",), max_open=1)
    simulation = Simulation([*busy, rare], num_slots=4, patience_s=20.0).run(1500)
    assert len(simulation.waits("rare")) > 15
    # Its patience; then the longest answer on the slot that comes free, once blocks and a place are there too.
    assert max(simulation.waits("rare")) <= 20 + 20 + 20
