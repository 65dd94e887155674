"""Decoding of a Llama-shaped model with random weights, end to end: the base, many adapters in one batch, and what one
would do without: a merged model for each adapter, one after the other.

A step is what the engine's runner makes of it: tensors of the step from lists, the decoder, the head, the likeliest
token. The merged models are one and the same here, for 64 of them fit no memory: a step of theirs is a forward pass of
the base for each adapter over its own rows, with no time for bringing a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.checks import Check
from gpu.clock import wall_seconds
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.kernels.on_triton import TRITON
from tenora_engine.lora.weights import AdapterLayer, AdapterWeights, DeviceSlots, layer_shapes
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.graphs import CudaRecorder, GraphedDecoder, Recorder
from tenora_engine.model.linear import TorchLinear
from tenora_engine.model.spec import LayerSpec, ModelSpec, RopeSpec
from tenora_engine.model.weights import LayerWeights, ModelWeights

BLOCK = 16


@dataclass(frozen=True)
class Size:
    spec: ModelSpec
    batch: int
    context: int
    num_steps: int
    adapters: Sequence[int]


@dataclass(frozen=True)
class Rate:
    what: str
    num_adapters: int
    graphs: bool
    step_ms: float
    tokens_per_s: float


def llama(num_layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int) -> ModelSpec:
    head_dim = hidden // heads
    return ModelSpec(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        layers=(LayerSpec(RopeSpec(500000.0)),) * num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=8192,
        rms_norm_eps=1e-5,
        attention_scale=head_dim**-0.5,
    )


def size_for(device: torch.device) -> Size:
    """Llama-3-8B's shape; on a GPU that is too small for it, with fewer layers."""
    if device.type != "cuda":
        return Size(llama(1, 32, 48, 2, 1, 60), batch=2, context=20, num_steps=1, adapters=(2,))
    gigabytes = torch.cuda.get_device_properties(device).total_memory >> 30
    num_layers = 32 if gigabytes >= 60 else max(1, gigabytes // 3)
    return Size(llama(num_layers, 4096, 14336, 32, 8, 128256), 64, 512, 20, (1, 8, 32, 64))


class RunAgain:
    """Graphs without CUDA: the same launches, one by one."""

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return run


class Model:
    def __init__(self, size: Size, device: torch.device, dtype: torch.dtype) -> None:
        self.size, self.device, self.dtype = size, device, dtype
        self._generator = torch.Generator(device).manual_seed(11)
        spec, num_slots = size.spec, max(size.adapters) + 1
        self.plain = Decoder(spec, self._weights(), TRITON)
        num_blocks = size.batch * -(-size.context // BLOCK)
        self.cache = allocate_kv(spec.num_layers, num_blocks, BLOCK, spec.num_kv_heads, spec.head_dim, dtype, device)
        self.slots = DeviceSlots(num_slots, spec, TRITON, dtype, device)
        recorder: Recorder = CudaRecorder() if device.type == "cuda" else RunAgain()
        self.graphed = GraphedDecoder(
            self.plain, self.cache, self.slots.adapters, max_rows=size.batch, context=size.context, recorder=recorder
        )

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        return values.normal_(0, scale, generator=self._generator)

    def _linear(self, out_features: int, in_features: int) -> TorchLinear:
        return TorchLinear(self.random(out_features, in_features, scale=in_features**-0.5))

    def _weights(self) -> ModelWeights:
        spec = self.size.spec
        ones = torch.ones(spec.hidden_size, device=self.device)

        def layer() -> LayerWeights:
            return LayerWeights(
                attention_norm=ones,
                qkv=self._linear(spec.q_size + 2 * spec.kv_size, spec.hidden_size),
                head_norms=None,
                output=self._linear(spec.hidden_size, spec.q_size),
                attention_out_norm=None,
                mlp_norm=ones,
                gate_up=self._linear(2 * spec.intermediate_size, spec.hidden_size),
                down=self._linear(spec.hidden_size, spec.intermediate_size),
                mlp_out_norm=None,
            )

        layers = tuple(layer() for _ in spec.layers)
        embedding = self.random(spec.vocab_size, spec.hidden_size)
        return ModelWeights(embedding, layers, ones, self._linear(spec.vocab_size, spec.hidden_size))

    def adapter(self, rank: int) -> AdapterWeights:
        """Of this rank on every projection."""
        spec = self.size.spec

        def pair(shape: LoraShape) -> LoraPair:
            ranks = (rank,) * len(shape.slices)
            a = self.random(shape.in_features, sum(ranks), scale=shape.in_features**-0.5)
            blocks = [self.random(rank, size, scale=0.1 * rank**-0.5) for size in shape.slices]
            return LoraPair(a, torch.block_diag(*blocks), ranks)

        def layer() -> AdapterLayer:
            qkv, output, gate_up, down = map(pair, layer_shapes(spec))
            return AdapterLayer(qkv, output, gate_up, down)

        return AdapterWeights(tuple(layer() for _ in spec.layers))

    def load(self, ranks: Sequence[int]) -> None:
        """Adapters of these ranks in the slots 0, 1, ..."""
        for slot, rank in enumerate(ranks):
            self.slots.install(slot, self.slots.place(self.adapter(rank)))

    @torch.inference_mode()
    def step(self, decoder: Decoder, num_rows: int, num_adapters: int) -> Tensor:
        """A token for each of `num_rows` sequences, which share the adapters in equal parts: logits, fp32."""
        context, per_sequence = self.size.context, -(-self.size.context // BLOCK)
        first = [1 + row * per_sequence for row in range(num_rows)]
        spans = [Span(row, row + 1, context, range(block, block + per_sequence)) for row, block in enumerate(first)]
        places = [(block + (context - 1) // BLOCK) * BLOCK + (context - 1) % BLOCK for block in first]
        bounds = [num_rows * slot // max(num_adapters, 1) for slot in range(num_adapters + 1)]
        segments = [Segment(bounds[slot], bounds[slot + 1], slot, 1.0) for slot in range(num_adapters)]
        batch = Batch(
            token_ids=self._indices([7 * row % self.size.spec.vocab_size for row in range(num_rows)]),
            positions=self._indices([context - 1] * num_rows),
            places=self._indices(places),
            attention=TRITON.prepare_attention(AttentionBatch(spans, BLOCK), self.device, self.dtype),
            add_lora=TRITON.prepare_lora(segments, self.device),
        )
        hidden = decoder.forward(batch, self.cache, self.slots.adapters)
        logits = decoder.logits(hidden, TRITON.prepare_lora([], self.device), self.slots.adapters)
        logits.argmax(-1)
        return logits

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def rate(self, what: str, decoder: Decoder, num_adapters: int, merged: bool = False) -> Rate:
        """merged: a forward pass of the base for each adapter."""
        batch = self.size.batch

        def step() -> None:
            if not merged:
                self.step(decoder, batch, num_adapters)
                return
            for _ in range(num_adapters):
                self.step(decoder, max(1, batch // num_adapters), 0)

        if self.device.type == "cuda":
            wall_seconds(step, 3, self.device)
        took = wall_seconds(step, self.size.num_steps, self.device)
        return Rate(what, num_adapters, decoder is self.graphed, took * 1000, batch / took)


def run_model(model: Model, tell: Callable[[str], None]) -> Iterator[Rate]:
    def told(rate: Rate) -> Rate:
        graphs = "graphs" if rate.graphs else "launches"
        work = f"{rate.what:16} {rate.num_adapters:3} adapters, {graphs:8}"
        tell(f"{work} {rate.step_ms:9.2f} ms  {rate.tokens_per_s:10.1f} tokens/s")
        return rate

    for decoder in (model.graphed, model.plain):
        yield told(model.rate("base", decoder, 0))
    for what, ranks in (("rank 16", (16,)), ("ranks 8 to 64", (8, 16, 32, 64))):
        for count in model.size.adapters:
            model.load([ranks[slot % len(ranks)] for slot in range(count)])
            for decoder in (model.graphed, model.plain):
                yield told(model.rate(what, decoder, count))
    for count in model.size.adapters:
        yield told(model.rate("merged, in turn", model.graphed, count, merged=True))


def check_graphs(model: Model) -> Iterator[Check]:
    """A replay says what the launches say; and while another adapter is brought to the device, and after it took its
    slot, the bits of those that run stay the same."""
    dtype = str(model.dtype).removeprefix("torch.")
    model.load([16] * max(model.size.adapters))
    count = min(8, max(model.size.adapters))
    want = model.step(model.plain, model.size.batch, count)
    got = model.step(model.graphed, model.size.batch, count)
    error = float((got - want).abs().max() / want.abs().max()) if want.isfinite().all() else float("inf")
    yield Check("a step as a graph", dtype, error, 2e-2 if model.dtype is torch.bfloat16 else 1e-4)

    other = max(model.size.adapters)  # a slot that no row uses

    def change() -> float:
        return float((model.step(model.graphed, model.size.batch, count) - got).abs().max())

    with ThreadPoolExecutor(1) as loader:
        weights = model.adapter(16)
        placing = loader.submit(model.slots.place, weights)
        changes = [change()]
        while not placing.done():
            changes.append(change())
        model.slots.install(other, placing.result())
    changes.append(change())
    yield Check("steps while an adapter loads", dtype, max(changes), 0.0)
