"""Which engine gets a request: the one that will have least to do before it, adapters counted in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tenora_engine.wire import Tier

# What it costs to bring an adapter to the device, in tokens of other work that an engine does meanwhile.
_LOAD_COST: Final[Mapping[Tier | None, int]] = {Tier.DEVICE: 0, Tier.HOST: 64, Tier.DISK: 256, None: 512}


@dataclass(frozen=True)
class Replica:
    """An engine as the gateway knows it now. Stale ones are not offered."""

    engine_id: str
    base_fingerprint: str
    load_tokens: int  # tokens it still has to compute, those sent since its last status included
    has_room: bool  # its waiting queue is not full
    draining: bool = False
    residency: Mapping[str, Tier] = field(default_factory=dict)  # adapter digest -> where its weights lie


def choose(replicas: Iterable[Replica], base_fingerprint: str, adapters: Collection[str]) -> Replica | None:
    """The best replica for a request with `adapters` (digests), or None when none can take it. Ties go to the lower
    engine id."""
    able = [r for r in replicas if r.base_fingerprint == base_fingerprint and r.has_room and not r.draining]

    def cost(replica: Replica) -> tuple[int, str]:
        loads = sum(_LOAD_COST[replica.residency.get(digest)] for digest in adapters)
        return replica.load_tokens + loads, replica.engine_id

    return min(able, key=cost, default=None)
