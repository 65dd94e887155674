"""What is asked, of whom and when: an endless sequence of calls, the same for the same seed.

Times, tenants and models, lengths, and texts are drawn from four generators of their own, so that changing one of them
leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from random import Random

from tenora_platform.bench.arrivals import arrivals
from tenora_platform.bench.lengths import Lengths
from tenora_platform.bench.prompts import Prompts
from tenora_platform.bench.targets import Targets, TargetTenant
from tenora_platform.bench.trace import TraceLine
from tenora_platform.bench.weights import Weighted, parse_weights


@dataclass(frozen=True, slots=True)
class Call:
    """One request to make. `at` is when it is due, in seconds from the start; a closed loop does not look at it."""

    tenant: str
    model: str
    prompt: str | list[int]
    output_tokens: int
    at: float = 0.0
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class Workload:
    """Raises ValueError when made of what cannot be; its calls raise PromptError."""

    targets: Targets
    prompts: Prompts
    prompt_tokens: Lengths
    output_tokens: Lengths
    tenant_weights: str = "uniform"  # on top of the weights that the tenants have
    model_weights: str = "uniform"
    trace: Sequence[TraceLine] = ()  # gives lengths, and tenants and models where it names them
    seed: int = 0

    def __post_init__(self) -> None:
        parse_weights(self.tenant_weights, 1)
        parse_weights(self.model_weights, 1)
        unknown = {line.tenant for line in self.trace} - {tenant.name for tenant in self.targets.tenants} - {None}
        if unknown:
            raise ValueError(f"the trace names tenants without a key: {', '.join(sorted(filter(None, unknown)))}")

    def calls(self) -> Iterator[Call]:
        """For a closed loop."""
        return self._at(repeat(0.0))

    def scheduled(self, process: str, rate: float) -> Iterator[Call]:
        """For an open loop: `rate` per second by an arrival process. Raises ValueError when there is no such."""
        return self._at(arrivals(process, rate, Random(f"{self.seed} times")))

    def replayed(self) -> Iterator[Call]:
        """The trace, once, at its own times."""
        return self._at(line.at for line in self.trace)

    def _at(self, times: Iterator[float]) -> Iterator[Call]:
        text = Random(f"{self.seed} text")
        for at, (tenant, model), (prompt, output) in zip(times, self._askers(), self._lengths(), strict=False):
            yield Call(tenant.name, model, self.prompts.make(tenant.name, prompt, text), output, at, tenant.api_key)

    def _askers(self) -> Iterator[tuple[TargetTenant, str]]:
        random = Random(f"{self.seed} askers")
        tenants = self.targets.tenants
        ranks = parse_weights(self.tenant_weights, len(tenants))
        any_tenant = Weighted(tenants, [t.weight * rank for t, rank in zip(tenants, ranks, strict=True)])
        models = {t.name: Weighted(t.models, parse_weights(self.model_weights, len(t.models))) for t in tenants}
        by_name = {tenant.name: tenant for tenant in tenants}
        for line in cycle(self.trace or (None,)):
            named = line.tenant if line is not None else None
            tenant = any_tenant.draw(random) if named is None else by_name[named]
            model = line.model if line is not None else None
            yield tenant, model or models[tenant.name].draw(random)

    def _lengths(self) -> Iterator[tuple[int, int]]:
        if self.trace:
            yield from ((line.prompt_tokens, line.output_tokens) for line in cycle(self.trace))
        random = Random(f"{self.seed} lengths")
        while True:
            yield self.prompt_tokens(random), self.output_tokens(random)
