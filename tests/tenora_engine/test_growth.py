"""An engine's process after ten thousand requests is as large as it was before them."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest
from engine_under_test import World, prompt
from gateway_double import EngineProcess, GatewayDouble

WARM_UP, MEASURED = 3_000, 10_000  # requests
AT_ONCE = 16
# Of memory that is never given back, a request's own tokens alone would be more than this over all that are measured.
ALLOWED = 4 << 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_does_not_grow(world: World, tmp_path: Path):
    """Prompts new and repeated, adapters that come and go, answers cut short: whatever a request leaves behind is
    either gone or in a cache that is full by the end of the warm-up."""
    few = ("--max-sequences", "8", "--adapter-slots", "2", "--host-adapters", "3")
    engine = EngineProcess(world.model, world.store.root, tmp_path, *few)
    try:
        gateway = GatewayDouble(engine.address)
        gateway.hello()
        process = psutil.Process(engine.process.pid)
        ask(gateway, world, WARM_UP)
        before = process.memory_info().rss
        ask(gateway, world, MEASURED)
        grown = process.memory_info().rss - before
    finally:
        engine.close()
    assert grown < ALLOWED, f"{grown / MEASURED:.0f} bytes a request"


def ask(gateway: GatewayDouble, world: World, count: int) -> None:
    dice = random.Random(count)
    names = [None, "r1", "r4", "r8", "r64"]
    for first in range(0, count, AT_ONCE):
        gateway.answers.clear()
        for index in range(first, min(first + AT_ONCE, count)):
            tokens = prompt(dice.choice((3, 20, 60)), dice.randrange(count))
            name = dice.choice(names)
            gateway.submit(
                f"{count}-{index}", tokens, adapter=name and world.digests[name], max_tokens=dice.randint(1, 8)
            )
        gateway.pump(lambda: all(answer.num_terminal for answer in gateway.answers.values()))
        assert all(answer.failed is None for answer in gateway.answers.values())
        gateway.steps.clear()
