"""The decoder: one forward pass over the tokens of a step, whatever requests and adapters they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.kernels import Kernels
from tenora_engine.kernels.attention import Attention
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import AddLora, LoraSlots
from tenora_engine.model.rope import rope_table
from tenora_engine.model.spec import Activation, ModelSpec
from tenora_engine.model.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """The adapters of one layer's projections, each by slot."""

    qkv: LoraSlots
    output: LoraSlots
    gate_up: LoraSlots
    down: LoraSlots


@dataclass(frozen=True, slots=True)
class Adapters:
    """All adapters in their slots, as the decoder sees them."""

    layers: Sequence[LayerSlots]
    lm_head: LoraSlots


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one step, T in all."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    places: Tensor  # int64 [T], where their keys and values go: block * block_size + offset
    attention: Attention
    add_lora: AddLora


class Decoder:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, kernels: Kernels) -> None:
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self._rope = rope_table(spec, spec.context_length).to(weights.embedding.device)

    def forward(self, batch: Batch, cache: Sequence[LayerKv], adapters: Adapters) -> Tensor:
        """Write the step's keys and values to `cache`; the final hidden states, normed: [T, hidden]."""
        kernels, eps = self.kernels, self.spec.rms_norm_eps
        x = F.embedding(batch.token_ids, self.weights.embedding)
        cos_sin = self._rope.index_select(0, batch.positions)
        residual: Tensor | None = None
        for layer, slots, layer_cache in zip(self.weights.layers, adapters.layers, cache, strict=True):
            x, residual = kernels.add_rms_norm(x, residual, layer.input_norm, eps)
            x = self._attention(x, layer, slots, layer_cache, cos_sin, batch)
            x, residual = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = self._mlp(x, layer, slots, batch.add_lora)
        return kernels.add_rms_norm(x, residual, self.weights.final_norm, eps).out

    def logits(self, hidden: Tensor, add_lora: AddLora, adapters: Adapters) -> Tensor:
        """hidden: [rows, hidden], only where a token is wanted; `add_lora` for these rows. fp32 [rows, vocab]."""
        y = self.weights.lm_head(hidden)
        add_lora(y, hidden, adapters.lm_head)
        return y.float()

    def _attention(
        self, x: Tensor, layer: LayerWeights, slots: LayerSlots, cache: LayerKv, cos_sin: Tensor, batch: Batch
    ) -> Tensor:
        spec, kernels = self.spec, self.kernels
        qkv = layer.qkv(x)
        batch.add_lora(qkv, x, slots.qkv)
        heads = qkv.view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        kernels.place_heads(heads, cos_sin, None, cache, batch.places, spec.num_heads)
        mixed = batch.attention(heads[:, : spec.num_heads], cache, spec.head_dim**-0.5, None).view(-1, spec.q_size)
        out = layer.output(mixed)
        batch.add_lora(out, mixed, slots.output)
        return out

    def _mlp(self, x: Tensor, layer: LayerWeights, slots: LayerSlots, add_lora: AddLora) -> Tensor:
        gate_up = layer.gate_up(x)
        add_lora(gate_up, x, slots.gate_up)
        inner = self.kernels.gated(gate_up, Activation.SILU)
        out = layer.down(inner)
        add_lora(out, inner, slots.down)
        return out
