"""What is counted per adapter: a bounded number of labels, whose sums are exact."""

from __future__ import annotations

from random import Random

from tenora_engine.lora.metrics import MAX_LABELS, AdapterMetrics
from tenora_engine.wire import AdapterUse, Tier, Usage


def read(metrics: AdapterMetrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def total(metrics: AdapterMetrics, name: str) -> float:
    return sum(value for key, value in read(metrics).items() if key.startswith(f"tenora_engine_adapter_{name}_total"))


def test_one_adapter():
    metrics = AdapterMetrics()
    metrics.hit("abc", None)
    metrics.hit("abc", Tier.HOST)
    metrics.loaded("abc", 0.5)
    metrics.failed("abc")
    metrics.evicted("abc", Tier.DEVICE)
    metrics.ended([AdapterUse("abc")], Usage(prompt=7, cached=3, completion=5))
    counts = read(metrics)
    assert counts['tenora_engine_adapter_hits_total{adapter="abc",tier="absent"}'] == 1
    assert counts['tenora_engine_adapter_hits_total{adapter="abc",tier="host"}'] == 1
    assert counts['tenora_engine_adapter_loads_total{adapter="abc"}'] == 1
    assert counts['tenora_engine_adapter_load_seconds_total{adapter="abc"}'] == 0.5
    assert counts['tenora_engine_adapter_load_failures_total{adapter="abc"}'] == 1
    assert counts['tenora_engine_adapter_evictions_total{adapter="abc",tier="device"}'] == 1
    assert counts['tenora_engine_adapter_prompt_tokens_total{adapter="abc"}'] == 7
    assert counts['tenora_engine_adapter_completion_tokens_total{adapter="abc"}'] == 5


def test_labels_are_bounded_and_nothing_is_lost():
    metrics, dice, asked = AdapterMetrics(), Random(2), 5000
    others = 0.0
    for _ in range(asked):
        metrics.ended([AdapterUse(f"adapter-{dice.randrange(300)}")], Usage(2, 0, 1))
        now = metrics._other.requests
        assert now >= others  # it never falls
        others = now
    labels = {key for key in read(metrics) if key.startswith("tenora_engine_adapter_requests_total")}
    assert len(labels) == MAX_LABELS + 1
    assert (total(metrics, "requests"), total(metrics, "prompt_tokens")) == (asked, 2 * asked)
