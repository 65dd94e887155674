"""What can be asked of a benchmark, in the words of the command line, and the plan that comes of it."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from tenora_platform.bench.arrivals import arrivals
from tenora_platform.bench.client import ClientOptions
from tenora_platform.bench.lengths import parse_lengths
from tenora_platform.bench.load import Limits
from tenora_platform.bench.metrics import Slo
from tenora_platform.bench.prompts import (
    IdPrompts,
    PromptForm,
    Prompts,
    SharedBy,
    SharedPrefix,
    WordPrompts,
    ordinary_ids,
    token_counter,
)
from tenora_platform.bench.run import Plan, Rate, Replay, Shape, Streams
from tenora_platform.bench.targets import Api, Targets
from tenora_platform.bench.trace import read_trace
from tenora_platform.bench.workload import Workload

_DURATION_S: Final = 20.0
_STREAMS: Final = 16
_OPEN_WARMUP_S: Final = 2.0
_FIRST_RATE: Final = 1.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The report repeats them: no key is among them. Milliseconds for the SLO, seconds elsewhere."""

    api: Api = Api.COMPLETIONS
    tenant_weights: str = "uniform"
    model_weights: str = "uniform"
    streams: int | None = None
    rate: float | None = None
    arrivals: str = "poisson"
    trace: str | None = None
    duration: float | None = None
    requests: int | None = None
    warmup: str | None = None
    drain: float = 30.0
    max_in_flight: int = 1000
    timeout: float = 300.0
    seed: int = 0
    prompt: str = "128"
    output: str = "64"
    prompt_as: PromptForm = PromptForm.AUTO
    tokenizer: str | None = None
    shared_prefix: float = 0.0
    shared_by: SharedBy = SharedBy.TENANT
    exact_output: bool = True
    temperature: float = 0.0
    slo_ttft: float | None = None
    slo_tpot: float | None = None
    slo_gap: float | None = None
    slo_e2e: float | None = None
    slo_share: float = 0.95
    sweep: bool = False
    sweep_trials: int = 10

    def client_options(self) -> ClientOptions:
        return ClientOptions(self.api, self.exact_output, self.temperature, self.timeout)

    def plan(self, targets: Targets) -> Plan:
        """Raises ValueError, OSError and PromptError when what was asked for cannot be."""
        self._check_ranges()
        shape = self._shape()
        slo = Slo(
            *(None if ms is None else ms / 1e3 for ms in (self.slo_ttft, self.slo_tpot, self.slo_gap, self.slo_e2e))
        )
        if self.sweep and not slo:
            raise ValueError("a sweep needs an SLO: --slo-ttft, --slo-tpot, --slo-gap or --slo-e2e")
        if self.sweep and not isinstance(shape, Rate):
            raise ValueError(
                "a sweep varies the rate of an open loop: without --streams, and with --rate beside --trace"
            )
        workload = Workload(
            targets=targets,
            prompts=self._prompts(),
            prompt_tokens=parse_lengths(self.prompt),
            output_tokens=parse_lengths(self.output),
            tenant_weights=self.tenant_weights,
            model_weights=self.model_weights,
            trace=read_trace(Path(self.trace)) if self.trace is not None else (),
            seed=self.seed,
        )
        return Plan(workload, shape, self._limits(shape), slo, msgspec.to_builtins(self))

    def _check_ranges(self) -> None:
        for name in ("duration", "timeout", "slo_ttft", "slo_tpot", "slo_gap", "slo_e2e", "slo_share"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ValueError(f"--{name.replace('_', '-')} is above zero, not {value:g}")
        for name in ("drain", "temperature"):
            value = getattr(self, name)
            if not 0 <= value < inf:
                raise ValueError(f"--{name} is zero or more, not {value:g}")
        if self.slo_share > 1:
            raise ValueError(f"--slo-share is a share, at most 1, not {self.slo_share:g}")

    def _shape(self) -> Shape:
        if self.streams is not None and self.rate is not None:
            raise ValueError("--streams is a closed loop and --rate an open one: give one of them")
        if self.rate is not None:
            arrivals(self.arrivals, self.rate, Random(0))  # refuses what is none
            return Rate(self.rate, self.arrivals)
        if self.streams is not None:
            return Streams(self.streams)
        if self.trace is not None:
            return Replay()
        return Rate(_FIRST_RATE, self.arrivals) if self.sweep else Streams(_STREAMS)

    def _limits(self, shape: Shape) -> Limits:
        """Something always ends a run: its time, its number of requests, or its trace."""
        duration = self.duration
        if duration is None and self.requests is None and not isinstance(shape, Replay):
            duration = _DURATION_S
        requests, seconds = (shape.count, 0.0) if isinstance(shape, Streams) else (0, _OPEN_WARMUP_S)
        if self.warmup is not None:
            found = re.fullmatch(r"(?P<seconds>[0-9.]+)s|(?P<requests>[0-9]+)", self.warmup)
            if found is None:
                raise ValueError(f"{self.warmup!r} is no warm-up: write a number of requests, or seconds as 5s")
            requests, seconds = int(found["requests"] or 0), float(found["seconds"] or 0.0)
        return Limits(
            requests=self.requests,
            duration_s=duration,
            warmup_requests=requests,
            warmup_s=seconds,
            drain_s=self.drain,
            max_in_flight=self.max_in_flight,
        )

    def _prompts(self) -> Prompts:
        prefix = SharedPrefix(self.shared_prefix, self.shared_by)
        tokenizer = Path(self.tokenizer) if self.tokenizer is not None else None
        form = self.prompt_as
        if form is PromptForm.AUTO:
            with_ids = tokenizer is not None and self.api is Api.COMPLETIONS
            form = PromptForm.IDS if with_ids else PromptForm.TEXT
        if form is PromptForm.TEXT:
            return WordPrompts(token_counter(tokenizer) if tokenizer is not None else None, prefix, self.seed)
        if tokenizer is None or self.api is not Api.COMPLETIONS:
            raise ValueError("token ids need --tokenizer, which says which there are, and the endpoint completions")
        return IdPrompts(ordinary_ids(tokenizer), prefix, self.seed)
