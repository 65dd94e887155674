"""Fair shares of the engine's work by virtual token counters (VTC; Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024). Pure arithmetic.

Each tenant has a counter of the service it received: `input_weight` for a prompt token that was computed for it and
`output_weight` for a token that was generated, divided by the tenant's weight. Whoever has the lowest counter is next.
One that comes back is lifted to the lowest counter of those that wait: being away earns no credit.

The bound (the paper's Theorem 4.8 in essence): for two tenants that both have requests waiting throughout an interval,
the service that they receive in it, each divided by its weight, differs by at most 2 U, where

    U = max(input_weight * L_input, output_weight * M)

with L_input the longest prompt and M the tokens that all running sequences can hold at once. It is independent of how
much either of them sends and of how long the interval is. The paper's scheduler stops when the least served one lacks
memory. Ours lets others pass it for a while (`Limits.lead`), so that a huge prompt does not drain the engine; that adds
the lead, once, to the bound.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Prices:
    """What a token of service counts."""

    input_weight: float = 1.0
    output_weight: float = 2.0


@dataclass(eq=False, slots=True)
class Tenant:
    name: str
    weight: float = 1.0
    counter: float = 0.0  # service received, divided by the weight
    num_waiting: int = 0  # sequences
    num_running: int = 0
    adapters: Counter[str] = field(default_factory=Counter)  # running sequences by the adapters that they use


class Fairness:
    """The tenants' counters. Of those that have no sequence only `max_idle` are remembered; the least served ones are
    forgotten first, whom the lift would put above their old counter anyway."""

    def __init__(self, prices: Prices = Prices(), max_idle: int = 1024) -> None:
        self.prices = prices
        self._max_idle = max_idle
        self._tenants: dict[str, Tenant] = {}
        self._queued: dict[str, Tenant] = {}  # those with waiting sequences
        self._last_to_leave: Tenant | None = None  # the last one to have nothing waiting any more

    def __getitem__(self, name: str) -> Tenant:
        return self._tenants[name]

    def __len__(self) -> int:
        return len(self._tenants)

    def arrive(self, name: str, weight: float) -> Tenant:
        """A tenant sends something new. The latest weight holds."""
        tenant = self._tenants.get(name)
        if tenant is None:
            self._forget_idle()
            tenant = self._tenants[name] = Tenant(name)
        tenant.weight = weight
        if name not in self._queued:
            active = self._queued.values() or filter(None, [self._last_to_leave])
            tenant.counter = max(tenant.counter, min((other.counter for other in active), default=0.0))
        return tenant

    def wait(self, tenant: Tenant) -> None:
        """One more of its sequences waits."""
        tenant.num_waiting += 1
        self._queued[tenant.name] = tenant

    def leave(self, tenant: Tenant) -> None:
        """One of its sequences waits no more."""
        tenant.num_waiting -= 1
        if tenant.num_waiting == 0:
            del self._queued[tenant.name]
            self._last_to_leave = tenant

    def charge_input(self, tenant: Tenant, num_tokens: int) -> None:
        tenant.counter += self.prices.input_weight * num_tokens / tenant.weight

    def charge_output(self, tenant: Tenant, num_tokens: int) -> None:
        tenant.counter += self.prices.output_weight * num_tokens / tenant.weight

    def _forget_idle(self) -> None:
        idle = [tenant for tenant in self._tenants.values() if not (tenant.num_waiting or tenant.num_running)]
        if len(idle) >= self._max_idle:
            del self._tenants[min(idle, key=lambda tenant: tenant.counter).name]
