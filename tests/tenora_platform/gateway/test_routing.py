"""Which engine gets a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenora_engine.wire import Tier
from tenora_platform.gateway.routing import Replica, choose

IDLE = Replica(engine_id="a", base_fingerprint="f", load_tokens=0, has_room=True)
DIGEST = "d" * 64


def test_the_least_loaded_gets_it_and_ties_are_settled() -> None:
    busy, other = replace(IDLE, load_tokens=10), replace(IDLE, engine_id="b")
    assert choose([busy, other], "f", []) is other
    assert choose([other, IDLE], "f", []) is IDLE


@pytest.mark.parametrize(
    "unable",
    [{"has_room": False}, {"draining": True}, {"base_fingerprint": "g"}],
    ids=["full", "draining", "other base"],
)
def test_who_cannot_take_it_is_not_asked(unable: dict[str, object]) -> None:
    assert choose([replace(IDLE, **unable)], "f", []) is None  # type: ignore[arg-type]
    assert choose([], "f", []) is None


def test_the_adapters_place_outweighs_a_small_load_and_not_a_large_one() -> None:
    without = IDLE
    with_it = replace(IDLE, engine_id="b", load_tokens=100, residency={DIGEST: Tier.DEVICE})
    assert choose([without, with_it], "f", [DIGEST]) is with_it
    assert choose([without, with_it], "f", []) is without
    assert choose([without, replace(with_it, load_tokens=10_000)], "f", [DIGEST]) is without


def test_faster_tiers_first() -> None:
    tiers = [Tier.DEVICE, Tier.HOST, Tier.DISK]
    replicas = [replace(IDLE, engine_id=str(9 - i), residency={DIGEST: tier}) for i, tier in enumerate(tiers)]
    for expected in replicas:
        assert choose(replicas, "f", [DIGEST]) is expected
        replicas = replicas[1:]


def test_all_of_a_requests_adapters_count() -> None:
    one, both = (replace(IDLE, engine_id=name) for name in "ab")
    one = replace(one, residency={DIGEST: Tier.DEVICE, "e": Tier.DISK})
    both = replace(both, residency={DIGEST: Tier.HOST, "e": Tier.DEVICE})
    assert choose([one, both], "f", [DIGEST]) is one
    assert choose([one, both], "f", [DIGEST, "e"]) is both
