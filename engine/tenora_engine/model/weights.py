"""Reads a checkpoint into the decoder's fused tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.model.linear import Linear, TorchLinear
from tenora_engine.model.spec import ModelSpec, UnsupportedModel

MakeLinear = Callable[[Tensor, Tensor | None], Linear]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # fp32 [hidden]
    qkv: Linear  # hidden -> q_size + 2 kv_size
    head_norms: HeadNorms | None
    output: Linear  # q_size -> hidden
    attention_out_norm: Tensor | None  # fp32 [hidden]
    mlp_norm: Tensor  # fp32 [hidden]
    gate_up: Linear  # hidden -> 2 intermediate
    down: Linear  # intermediate -> hidden
    mlp_out_norm: Tensor | None  # fp32 [hidden]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # fp32 [hidden]
    lm_head: Linear  # hidden -> vocab


class Checkpoint:
    """The tensors of safetensors files by name; each is read when asked for."""

    def __init__(
        self,
        files: Iterable[Path],
        dtype: torch.dtype,
        device: torch.device,
        make_linear: MakeLinear,
        norm_offset: float,
        stack: ExitStack,
    ) -> None:
        """`norm_offset` is added to the weights of the norms."""
        self._make_linear = make_linear
        self._dtype = dtype
        self._norm_offset = norm_offset
        self._device = device
        self._files: dict[str, Any] = {}
        for path in files:
            file = stack.enter_context(safe_open(path, framework="pt"))
            self._files.update(dict.fromkeys(file.keys(), file))
        self._unread = {name for name in self._files if not name.endswith("rotary_emb.inv_freq")}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """In the model's dtype. Raises UnsupportedModel when the checkpoint lacks it, or has it in another shape."""
        return self._read(name, shape, self._dtype)

    def norm(self, name: str, size: int) -> Tensor:
        """The weight of an RMSNorm, in fp32."""
        return self._read(f"{name}.weight", (size,), torch.float32) + self._norm_offset

    def linear(self, in_features: int, out_features: Mapping[str, int], bias: bool) -> Linear:
        """Linear layers with one input, as one: their rows one below the other. `out_features` by name."""
        weights = [self.tensor(f"{name}.weight", size, in_features) for name, size in out_features.items()]
        biases = [self.tensor(f"{name}.bias", size) for name, size in out_features.items()] if bias else []
        return self._make_linear(torch.cat(weights), torch.cat(biases) if bias else None)

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint lacks {name}")
        self._unread.discard(name)
        value: Tensor = self._files[name].get_tensor(name)
        if value.shape != shape:
            raise UnsupportedModel(
                f"{name} has the shape {list(value.shape)}, by config.json it should be {list(shape)}"
            )
        return value.to(device=self._device, dtype=dtype)

    def discard(self, name: str) -> None:
        self._unread.discard(name)

    def unread(self) -> list[str]:
        """Tensors that nobody asked for: a part of the model that would be left out of the computation."""
        return sorted(self._unread)


def load_weights(
    files: Iterable[Path],
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    make_linear: MakeLinear = TorchLinear,
) -> ModelWeights:
    """Raises UnsupportedModel when the tensors are not those of `spec`, SafetensorError or OSError when unreadable."""
    with ExitStack() as stack:
        checkpoint = Checkpoint(files, dtype, device, make_linear, 1.0 if spec.unit_offset_norms else 0.0, stack)
        embedding = checkpoint.tensor("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        layers = tuple(_layers(checkpoint, spec))
        if spec.tied_embeddings:
            checkpoint.discard("lm_head.weight")
            lm_head = make_linear(embedding, None)
        else:
            lm_head = checkpoint.linear(spec.hidden_size, {"lm_head": spec.vocab_size}, bias=False)
        final_norm = checkpoint.norm("model.norm", spec.hidden_size)
        if unread := checkpoint.unread():
            raise UnsupportedModel(f"{len(unread)} tensors of the checkpoint have no place, {unread[0]} the first")
    return ModelWeights(embedding, layers, final_norm, lm_head)


def _layers(checkpoint: Checkpoint, spec: ModelSpec) -> Iterator[LayerWeights]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    for index in range(spec.num_layers):
        layer = f"model.layers.{index}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        qkv = {
            f"{attention}.q_proj": spec.q_size,
            f"{attention}.k_proj": spec.kv_size,
            f"{attention}.v_proj": spec.kv_size,
        }
        # transformers names the norms of a block by their place, so that one name means two things.
        before_mlp = "pre_feedforward_layernorm" if spec.output_norms else "post_attention_layernorm"
        head_norms = attention_out_norm = mlp_out_norm = None
        if spec.qk_norm:
            q_norm, k_norm = (checkpoint.norm(f"{attention}.{name}", spec.head_dim) for name in ("q_norm", "k_norm"))
            head_norms = HeadNorms(q_norm, k_norm, spec.rms_norm_eps)
        if spec.output_norms:
            attention_out_norm = checkpoint.norm(f"{layer}.post_attention_layernorm", hidden)
            mlp_out_norm = checkpoint.norm(f"{layer}.post_feedforward_layernorm", hidden)
        yield LayerWeights(
            attention_norm=checkpoint.norm(f"{layer}.input_layernorm", hidden),
            qkv=checkpoint.linear(hidden, qkv, spec.qkv_bias),
            head_norms=head_norms,
            output=checkpoint.linear(spec.q_size, {f"{attention}.o_proj": hidden}, spec.output_bias),
            attention_out_norm=attention_out_norm,
            mlp_norm=checkpoint.norm(f"{layer}.{before_mlp}", hidden),
            gate_up=checkpoint.linear(hidden, {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}, spec.mlp_bias),
            down=checkpoint.linear(inner, {f"{mlp}.down_proj": hidden}, spec.mlp_bias),
            mlp_out_norm=mlp_out_norm,
        )
