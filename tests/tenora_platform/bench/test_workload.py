from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from tenora_platform.bench.lengths import parse_lengths
from tenora_platform.bench.prompts import IdPrompts, SharedPrefix
from tenora_platform.bench.targets import Targets, TargetTenant
from tenora_platform.bench.trace import TraceLine
from tenora_platform.bench.workload import Call, Workload

TENANTS = [TargetTenant("a", ["base:x", "base:y"], "key-a"), TargetTenant("b", ["base:z"], "key-b", weight=3.0)]
WORKLOAD = Workload(
    Targets("http://127.0.0.1/v1", TENANTS),
    IdPrompts(range(1000), SharedPrefix(), seed=0),
    parse_lengths("uniform:4-8"),
    parse_lengths("16"),
)


def first(count: int, workload: Workload = WORKLOAD) -> list[Call]:
    return list(islice(workload.calls(), count))


def test_the_same_seed_asks_the_same() -> None:
    assert first(50) == first(50)
    assert first(50) != first(50, replace(WORKLOAD, seed=1))


def test_each_tenant_asks_with_its_own_key_and_models() -> None:
    for call in first(100):
        assert (call.key, call.model) in {("key-a", "base:x"), ("key-a", "base:y"), ("key-b", "base:z")}


def test_tenants_and_models_are_drawn_by_weight() -> None:
    skewed = replace(WORKLOAD, model_weights="zipf:1")
    drawn = Counter(call.model for call in first(6000, skewed))
    assert drawn["base:z"] / 6000 == pytest.approx(0.75, abs=0.02)
    assert drawn["base:x"] / drawn["base:y"] == pytest.approx(2.0, rel=0.15)


def test_lengths_are_as_wanted() -> None:
    assert {len(call.prompt) for call in first(200)} == {4, 5, 6, 7, 8}
    assert {call.output_tokens for call in first(200)} == {16}


def test_another_rate_changes_the_times_alone() -> None:
    slow, fast = (list(islice(WORKLOAD.scheduled("poisson", rate), 20)) for rate in (1.0, 2.0))
    assert [replace(call, at=0.0) for call in slow] == [replace(call, at=0.0) for call in fast]
    assert [call.at for call in slow] == pytest.approx([2 * call.at for call in fast])


def test_a_trace_gives_times_lengths_and_whom_it_names() -> None:
    trace = [TraceLine(5, 7, 0.0, "b"), TraceLine(6, 8, 1.5, "a", "base:other")]
    one, other = replace(WORKLOAD, trace=trace).replayed()
    assert (one.at, len(one.prompt), one.output_tokens, one.tenant, one.model) == (0.0, 5, 7, "b", "base:z")
    assert (other.at, len(other.prompt), other.output_tokens, other.model) == (1.5, 6, 8, "base:other")


def test_a_traces_lengths_come_again_and_again_in_a_closed_loop() -> None:
    trace = [TraceLine(5, 7), TraceLine(6, 8)]
    assert [len(call.prompt) for call in first(5, replace(WORKLOAD, trace=trace))] == [5, 6, 5, 6, 5]


def test_a_trace_of_a_tenant_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="without a key: c"):
        replace(WORKLOAD, trace=[TraceLine(5, 7, tenant="c"), TraceLine(5, 7)])


def test_keys_are_not_shown() -> None:
    assert "key-a" not in repr(first(1)) + repr(TENANTS)
