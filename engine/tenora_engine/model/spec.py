"""What the decoder must know of a model: its sizes, and flags for what differs between families. No torch here.

`hf_config` reads it from a `config.json`. Whatever the decoder does not compute is refused by name at start-up: never
served approximately.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class UnsupportedModel(Exception):
    """The model asks for something that the decoder does not compute."""


class Activation(StrEnum):
    """Of the MLP's gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"  # GELU by its tanh formula


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: low frequencies divided by `factor`, high ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): as Llama 3's, with the ramp over dimensions, and a `magnitude`."""

    factor: float
    original_context: int
    beta_fast: float  # full turns within the original context: a dimension that makes more is kept
    beta_slow: float  # one that makes fewer is divided by `factor`
    truncate: bool  # whether the ramp's ends are whole dimensions
    magnitude: float  # of the rotated queries and keys


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs between the layers of one model."""

    rope: RopeSpec | None  # None: no positions (NoPE)
    window: int | None = None  # tokens that a token sees, itself included; None: all before it


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Pre-norm blocks of grouped-query attention and a gated MLP, between an embedding and a head."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens, prompt and completion together
    rms_norm_eps: float
    attention_scale: float  # of the products of queries and keys
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    unit_offset_norms: bool = False  # the norms' weights are kept as their difference from 1
    output_norms: bool = False  # attention's and the MLP's outputs are normed before they join the residual
    qk_norm: bool = False  # an RMSNorm of each query and key head
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
