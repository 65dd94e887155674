"""The decoder: one forward pass over the tokens of a step, whatever requests and adapters they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.kernels import Kernels
from tenora_engine.kernels.attention import Attention
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import AddLora, LoraSlots
from tenora_engine.model.rope import Rope
from tenora_engine.model.spec import LayerSpec, ModelSpec, RopeSpec
from tenora_engine.model.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class NormSlots:
    """What adapters change in the norms of one layer, each by slot; empty where the model has no such norm."""

    attention: LoraSlots
    attention_out: LoraSlots
    mlp: LoraSlots
    mlp_out: LoraSlots


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """The adapters of one layer's projections, each by slot."""

    qkv: LoraSlots
    output: LoraSlots
    gate_up: LoraSlots
    down: LoraSlots
    norms: NormSlots

    @property
    def linears(self) -> tuple[LoraSlots, ...]:
        return (self.qkv, self.output, self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class Adapters:
    """All adapters in their slots, as the decoder sees them."""

    layers: Sequence[LayerSlots]
    lm_head: LoraSlots
    embedding: LoraSlots
    final_norm: LoraSlots
    changing_norms: set[int] = field(default_factory=set)  # the slots whose adapters do


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one step, T in all."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    places: Tensor  # int64 [T], where their keys and values go: block * block_size + offset
    attention: Attention
    add_lora: AddLora
    changes_norms: bool = False  # whether an adapter of this step does


class Decoder:
    def __init__(self, spec: ModelSpec, weights: ModelWeights, kernels: Kernels) -> None:
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        embedding = weights.embedding
        # Rounded to the model's dtype as in transformers: Gemma was trained so.
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=embedding.dtype).item()
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        self._ropes = {rope: Rope(rope, spec.head_dim, embedding.device) for rope in ropes}

    def forward(self, batch: Batch, cache: Sequence[LayerKv], adapters: Adapters) -> Tensor:
        """Write the step's keys and values to `cache`; the final hidden states, normed: [T, hidden]."""
        return self.layers(self.embed(batch, adapters), self.angles(batch.positions), batch, cache, adapters)

    def embed(self, batch: Batch, adapters: Adapters) -> Tensor:
        """[T, hidden]."""
        x = F.embedding(batch.token_ids, self.weights.embedding)
        batch.add_lora(x, batch.token_ids, adapters.embedding)
        return x if self._embedding_scale == 1.0 else x.mul_(self._embedding_scale)

    def angles(self, positions: Tensor) -> dict[RopeSpec, Tensor]:
        """By kind of RoPE in the model: fp32 [T, head_dim], cosines then sines."""
        return {spec: rope.cos_sin(positions) for spec, rope in self._ropes.items()}

    def layers(
        self,
        x: Tensor,
        angles: Mapping[RopeSpec, Tensor],
        batch: Batch,
        cache: Sequence[LayerKv],
        adapters: Adapters,
    ) -> Tensor:
        """From the embedded tokens, [T, hidden], which are overwritten, to what `forward` returns.

        Nothing but operations of the kernel seam and views: `tenora_engine.cpu.recorded` relies on it.
        """
        kernels, eps = self.kernels, self.spec.rms_norm_eps

        def adapt_norm(x: Tensor, slots: LoraSlots) -> None:
            if batch.changes_norms:  # hardly any adapter does: nothing is launched, or recorded, for the others
                batch.add_lora(x, x, slots)

        residual: Tensor | None = None
        for spec, layer, slots, layer_cache in zip(
            self.spec.layers, self.weights.layers, adapters.layers, cache, strict=True
        ):
            x, residual = kernels.add_rms_norm(x, residual, layer.attention_norm, eps)
            adapt_norm(x, slots.norms.attention)
            cos_sin = None if spec.rope is None else angles[spec.rope]
            x = self._attention(x, spec, layer, slots, layer_cache, cos_sin, batch)
            if layer.attention_out_norm is not None:
                x = kernels.add_rms_norm(x, None, layer.attention_out_norm, eps).out
                adapt_norm(x, slots.norms.attention_out)
            x, residual = kernels.add_rms_norm(x, residual, layer.mlp_norm, eps)
            adapt_norm(x, slots.norms.mlp)
            x = self._mlp(x, layer, slots, batch.add_lora)
            if layer.mlp_out_norm is not None:
                x = kernels.add_rms_norm(x, None, layer.mlp_out_norm, eps).out
                adapt_norm(x, slots.norms.mlp_out)
        x = kernels.add_rms_norm(x, residual, self.weights.final_norm, eps).out
        adapt_norm(x, adapters.final_norm)
        return x

    def logits(self, hidden: Tensor, add_lora: AddLora, adapters: Adapters) -> Tensor:
        """hidden: [rows, hidden], only where a token is wanted; `add_lora` for these rows. fp32 [rows, vocab]."""
        y = self.weights.lm_head(hidden)
        add_lora(y, hidden, adapters.lm_head)
        return y.float()

    def _attention(
        self,
        x: Tensor,
        layer_spec: LayerSpec,
        layer: LayerWeights,
        slots: LayerSlots,
        cache: LayerKv,
        cos_sin: Tensor | None,
        batch: Batch,
    ) -> Tensor:
        spec = self.spec
        qkv = layer.qkv(x)
        batch.add_lora(qkv, x, slots.qkv)
        heads = qkv.view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        self.kernels.place_heads(heads, cos_sin, layer.head_norms, cache, batch.places, spec.num_heads)
        queries = heads[:, : spec.num_heads]
        mixed = batch.attention(queries, cache, spec.attention_scale, layer_spec.window).view(-1, spec.q_size)
        out = layer.output(mixed)
        batch.add_lora(out, mixed, slots.output)
        return out

    def _mlp(self, x: Tensor, layer: LayerWeights, slots: LayerSlots, add_lora: AddLora) -> Tensor:
        gate_up = layer.gate_up(x)
        add_lora(gate_up, x, slots.gate_up)
        inner = self.kernels.gated(gate_up, self.spec.activation)
        out = layer.down(inner)
        add_lora(out, inner, slots.down)
        return out
