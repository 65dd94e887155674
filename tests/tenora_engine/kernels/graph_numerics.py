"""Graphs of decoding, recorded and replayed in Triton's interpreter, against the decoder on the reference kernels.

Run by test_interpreter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_under_test import TINY_VOCAB, World
from recorder_double import FakeRecorder, HostWaits
from torch import Tensor

from tenora_adapters.base import weight_files
from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.kernels.lora import LoraPair, Segment
from tenora_engine.kernels.on_triton import TRITON
from tenora_engine.lora.weights import AdapterLayer, AdapterNorms, AdapterWeights, DeviceSlots
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.graphs import GraphedDecoder, Size
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.weights import load_weights

pytest_plugins = ["interpreted"]

CPU, FP32 = torch.device("cpu"), torch.float32
BLOCK, NUM_SLOTS, MAX_ROWS = 4, 3, 3


class Side:
    """A decoder with a cache and slots of its own."""

    def __init__(self, world: World, kernels: Kernels) -> None:
        self.spec = read_spec(world.model)
        weights = load_weights(weight_files(world.model), self.spec, FP32, CPU, REFERENCE.make_linear)
        self.decoder = Decoder(self.spec, weights, kernels)
        self.cache = allocate_kv(self.spec.num_layers, 40, BLOCK, self.spec.num_kv_heads, self.spec.head_dim, FP32, CPU)
        self.slots = DeviceSlots(NUM_SLOTS, self.spec, kernels, FP32, CPU)

    def put(self, slot: int, weights: AdapterWeights) -> None:
        self.slots.install(slot, self.slots.place(weights))

    @torch.inference_mode()
    def forward(self, contexts: Sequence[int], segments: Sequence[Segment], length: int = 1) -> Tensor:
        """One step of sequences that hold blocks 1, 2, ..., each with `length` new tokens."""
        generator = torch.Generator().manual_seed(sum(contexts))
        spans, positions, places, first_block = [], [], [], 1
        for index, context in enumerate(contexts):
            blocks = list(range(first_block, first_block + -(-context // BLOCK)))
            first_block += len(blocks)
            spans.append(Span(index * length, (index + 1) * length, context, blocks))
            positions += range(context - length, context)
            places += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(context - length, context)]
        kernels = self.decoder.kernels
        batch = Batch(
            token_ids=torch.randint(TINY_VOCAB, (len(positions),), generator=generator),
            positions=torch.tensor(positions),
            places=torch.tensor(places),
            attention=kernels.prepare_attention(AttentionBatch(spans, BLOCK), CPU, FP32),
            add_lora=kernels.prepare_lora(segments, CPU),
            changes_norms=any(segment.slot in self.slots.adapters.changing_norms for segment in segments),
        )
        return self.decoder.forward(batch, self.cache, self.slots.adapters)


def adapter(side: Side, rank: int, seed: int) -> AdapterWeights:
    """On two projections, one of them with a gain and an offset."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = side.spec.hidden_size, side.spec.intermediate_size

    def pair(in_features: int, affine: bool) -> LoraPair:
        a = torch.randn(in_features, rank, generator=generator)
        b = torch.randn(rank, hidden, generator=generator) / rank
        return LoraPair(a, b, (rank,), torch.randn(2, hidden, generator=generator) if affine else None)

    layers = [AdapterLayer(output=pair(hidden, False), down=pair(inner, True)) for _ in range(side.spec.num_layers)]
    return AdapterWeights(tuple(layers))


@pytest.fixture
def plain(world: World) -> Side:
    return Side(world, REFERENCE)


@pytest.fixture
def recorder() -> FakeRecorder:
    return FakeRecorder()


@pytest.fixture
def graphed(world: World, recorder: FakeRecorder) -> Side:
    side = Side(world, TRITON)
    side.decoder = GraphedDecoder(
        side.decoder, side.cache, side.slots.adapters, max_rows=MAX_ROWS, context=20, recorder=recorder
    )
    return side


def assert_same(graphed: Side, plain: Side, *step: Any, **options: Any) -> None:
    torch.testing.assert_close(graphed.forward(*step, **options), plain.forward(*step, **options), atol=2e-4, rtol=1e-4)
    for ours, theirs in zip(graphed.cache, plain.cache, strict=True):
        torch.testing.assert_close(ours.keys[1:], theirs.keys[1:], atol=2e-4, rtol=1e-4)


def test_steps_of_any_size_are_replays(graphed: Side, plain: Side, recorder: FakeRecorder):
    """A graph of three rows replays steps of three and fewer: contexts change, adapters come and go, move between rows
    and add up."""
    assert isinstance(graphed.decoder, GraphedDecoder)
    graphed.decoder._rows = [MAX_ROWS]
    both = (graphed, plain)
    for side in both:
        for slot in range(2):
            side.put(slot, adapter(side, rank=(3, 9)[slot], seed=slot))
    assert_same(graphed, plain, [5, 5, 5], [], length=5)  # prompts: no graph
    assert not recorder.recordings
    assert_same(graphed, plain, [6, 6, 6], [Segment(0, 3, 0, 1.0)])
    (recording,) = recorder.recordings
    num_calls = len(recording.calls)
    assert recording.num_launches > 0
    assert_same(graphed, plain, [7, 7, 7], [Segment(0, 1, 1, 0.5), Segment(2, 3, 0, 1.0), Segment(2, 3, 1, 2.0)])
    for side in both:
        side.put(0, adapter(side, rank=12, seed=7))
        side.put(2, adapter(side, rank=1, seed=8))
    assert_same(graphed, plain, [8, 8, 8], [Segment(0, 2, 2, 1.0), Segment(2, 3, 0, -1.0)])
    assert_same(graphed, plain, [9, 9], [Segment(1, 2, 2, 1.0)])
    assert recorder.recordings == [recording]
    assert len(recording.calls) == num_calls


def test_embeddings_are_in_the_graph_and_changed_norms_beside_it(graphed: Side, plain: Side, recorder: FakeRecorder):
    """Whoever changes norms costs the steps that it is in their graph, and no other."""
    generator = torch.Generator().manual_seed(3)
    hidden = plain.spec.hidden_size
    embedding = LoraPair(
        torch.randn(TINY_VOCAB, 20, generator=generator), torch.randn(20, hidden, generator=generator) / 20, (20,)
    )
    gain = torch.stack([torch.rand(hidden, generator=generator), torch.zeros(hidden)])
    norm = LoraPair(torch.empty(hidden, 0), torch.empty(0, hidden), (0,), gain)
    for side in (graphed, plain):
        rest = adapter(side, rank=2, seed=0)
        side.put(0, replace(rest, embedding=embedding))
        layers = tuple(replace(layer, norms=AdapterNorms(attention=norm, mlp=norm)) for layer in rest.layers)
        side.put(1, replace(rest, layers=layers, final_norm=norm))
    assert_same(graphed, plain, [6, 6], [Segment(0, 1, 0, 1.0)])
    assert len(recorder.recordings) == 1
    assert_same(graphed, plain, [7, 7], [Segment(0, 1, 0, 1.0), Segment(1, 2, 1, 0.5)])
    assert len(recorder.recordings) == 1
    assert_same(graphed, plain, [7, 7, 7], [Segment(0, 3, 1, 1.0)], length=2)  # prompts
    for side in (graphed, plain):
        side.put(1, adapter(side, rank=2, seed=5))
    assert_same(graphed, plain, [8, 8], [Segment(0, 1, 1, 1.0)])


def test_each_size_has_its_graph(graphed: Side, plain: Side, recorder: FakeRecorder):
    """The base has graphs of its own, without a launch for adapters; larger ranks have larger ones."""
    for side in (graphed, plain):
        side.put(0, adapter(side, rank=17, seed=0))
        side.put(1, adapter(side, rank=70, seed=1))
    for rows, segments in ((1, []), (2, []), (2, [Segment(1, 2, 0, 1.0)]), (1, [Segment(0, 1, 1, 1.0)]), (2, [])):
        assert_same(graphed, plain, [3] * rows, segments)
    assert isinstance(graphed.decoder, GraphedDecoder)
    assert list(graphed.decoder._graphs) == [Size(1, 0), Size(2, 0), Size(2, 64), Size(1, 128)]
    base, _, adapted, _ = (recording.num_launches for recording in recorder.recordings)
    assert adapted > base


def test_what_fits_no_graph_runs_without(graphed: Side, plain: Side, recorder: FakeRecorder):
    """More rows than the largest has, or more adapters on a row than its tables hold."""
    for side in (graphed, plain):
        side.put(0, adapter(side, rank=2, seed=0))
    assert_same(graphed, plain, [2, 2, 2, 2], [])
    assert_same(graphed, plain, [3], [Segment(0, 1, 0, 0.1)] * 5)
    assert not recorder.recordings


def test_warmed_up_nothing_is_recorded_later(graphed: Side, plain: Side, recorder: FakeRecorder):
    assert isinstance(graphed.decoder, GraphedDecoder)
    graphed.decoder._rows = [2]
    graphed.decoder.warm_up()
    num_recordings = len(recorder.recordings)
    assert num_recordings == 3
    assert_same(graphed, plain, [3, 9], [])
    assert len(recorder.recordings) == num_recordings


def test_the_recorder_sees_a_host_that_waits(recorder: FakeRecorder):
    """The control of all above: it would not have passed."""
    with pytest.raises(HostWaits):
        recorder.record(lambda: torch.ones(3) * torch.ones(1).item())
