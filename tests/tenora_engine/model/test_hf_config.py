"""config.json as it is published, in old forms and new ones, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_configs import PUBLISHED
from transformers import AutoConfig

from tenora_engine.model.hf_config import parse_spec, read_spec
from tenora_engine.model.spec import (
    Activation,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    RopeSpec,
    UnsupportedModel,
    YarnScaling,
)

LLAMA = PUBLISHED["Llama 3.1 8B"]
QWEN = PUBLISHED["Qwen2.5 7B"]
GEMMA = PUBLISHED["Gemma 3 1B"]


def parse(name: str) -> ModelSpec:
    return parse_spec(PUBLISHED[name], {})


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def ropes(spec: ModelSpec) -> set[RopeSpec | None]:
    return {layer.rope for layer in spec.layers}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_transformers_would_save_it_today(name: str):
    """transformers reads the published text, fills its own defaults in and writes the new form: the same spec."""
    config = PUBLISHED[name]
    saved = AutoConfig.for_model(**config).to_dict()
    assert saved["rope_parameters"]
    assert "rope_scaling" not in saved
    assert parse_spec(saved, {}) == parse_spec(config, {})


def test_llama():
    spec = parse("Llama 3.1 8B")
    assert ropes(spec) == {RopeSpec(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))}
    assert (spec.num_layers, spec.head_dim, spec.context_length, spec.attention_scale) == (32, 128, 131_072, 128**-0.5)
    assert spec.eos_token_ids == (128_001, 128_008, 128_009)
    assert not any((spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm, spec.tied_embeddings))
    assert spec.activation is Activation.SILU
    assert parse("Llama 2 7B").num_kv_heads == 32
    assert parse("SmolLM2 135M").tied_embeddings
    assert parse_spec(LLAMA | {"attention_bias": True}, {}).output_bias


def test_rope_scalings():
    assert ropes(parse("Vicuna 7B 16k, linear")) == {RopeSpec(10_000.0, LinearScaling(4.0))}
    yarn = parse("Qwen2.5 7B, YaRN")
    magnitude = 1.138629436111989  # 0.1 ln 4 + 1
    assert ropes(yarn) == {RopeSpec(1_000_000.0, YarnScaling(4.0, 32_768, 32.0, 1.0, True, magnitude))}
    assert yarn.context_length == 131_072  # 4 x 32768: the model card says to add YaRN, and nothing else
    assert parse("Qwen3 0.6B, YaRN").context_length == 131_072
    assert parse("Yarn Llama 2 7B 64k").context_length == 65_536


def test_dynamic_ntk_is_served_as_far_as_it_scales_nothing():
    spec = parse("a Llama 2 with dynamic NTK")
    assert (ropes(spec), spec.context_length) == ({RopeSpec(10_000.0)}, 4096)


def test_windows():
    """Those that a context cannot outgrow are none."""
    assert windows(parse("Mistral 7B v0.1")) == [4096] * 32
    assert windows(parse("Mistral 7B v0.3")) == [None] * 32
    assert windows(parse("Qwen2.5 7B")) == [None] * 28
    assert windows(parse("Qwen2 with its window")) == [None] * 21 + [4096] * 7
    assert windows(parse_spec(QWEN | {"use_sliding_window": True, "max_window_layers": 0}, {})) == [None] * 28
    assert parse("Mistral Nemo 12B").q_size == 4096


def test_qwen():
    spec = parse("Qwen2.5 7B")
    assert (spec.qkv_bias, spec.output_bias, spec.qk_norm) == (True, False, False)
    spec = parse("Qwen3 0.6B")
    assert (spec.qkv_bias, spec.qk_norm, spec.q_size, spec.tied_embeddings) == (False, True, 2048, True)


def test_smollm3():
    spec = parse("SmolLM3 3B")
    assert [layer.rope is None for layer in spec.layers] == [False, False, False, True] * 9
    assert spec.tied_embeddings  # as transformers assumes: the file does not say
    silent = {key: value for key, value in PUBLISHED["SmolLM3 3B"].items() if not key.startswith("no_rope")}
    assert parse_spec(silent, {}) == spec


def test_gemma3():
    spec = parse("Gemma 3 1B")
    local, everywhere = RopeSpec(10_000.0), RopeSpec(1_000_000.0)
    assert [layer.rope for layer in spec.layers] == ([local] * 5 + [everywhere]) * 4 + [local] * 2
    assert windows(spec) == ([512] * 5 + [None]) * 4 + [512] * 2
    assert (spec.embedding_scale, spec.attention_scale) == (1152**0.5, 256**-0.5)
    assert spec.unit_offset_norms
    assert spec.output_norms
    assert spec.qk_norm
    assert spec.tied_embeddings
    assert spec.activation is Activation.GELU_TANH
    scaled = parse("a Gemma 3 text model of 4B, cut out of its vision model")
    assert ropes(scaled) == {local, RopeSpec(1_000_000.0, LinearScaling(8.0))}  # only global layers are stretched


def test_generation_config_says_where_to_stop(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert read_spec(tmp_path).eos_token_ids == (151_645,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    assert read_spec(tmp_path).eos_token_ids == (151_645, 151_643)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (LLAMA, {"model_type": "mixtral"}, "mixtral"),
        (LLAMA, {"model_type": "gemma3"}, "'gemma3' is not served"),
        (LLAMA, {"hidden_act": "gelu"}, "gelu"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantized"),
        (LLAMA, {"num_local_experts": 8}, "experts"),
        (LLAMA, {"rope_interleaved": True}, "neighbouring"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0, "short_factor": []}}, "short_factor"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
        (LLAMA, {"rope_scaling": None, "rope_parameters": {"full_attention": {}}}, "full_attention"),
        (LLAMA, {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        (LLAMA, {"rms_norm_eps": None}, "cannot be"),
        (QWEN, {"layer_types": ["sliding_attention"] * 28}, "use_sliding_window"),
        (QWEN, {"layer_types": ["linear_attention"] * 28}, "layer_types"),
        (QWEN, {"layer_types": ["full_attention"] * 27}, "layer_types"),
        (GEMMA, {"final_logit_softcapping": 30.0}, "softcapping of logits"),
        (GEMMA, {"attn_logit_softcapping": 50.0}, "softcapping of attention"),
        (GEMMA, {"use_bidirectional_attention": True}, "later tokens"),
        (GEMMA, {"sliding_window": None}, "cannot be"),
        (GEMMA, {"vision_config": {"hidden_size": 1}}, "vision"),
        (GEMMA, {"rope_parameters": {"rope_theta": 1.0}}, "type of layer"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], change: dict[str, Any], message: str):
    with pytest.raises(UnsupportedModel, match=message):
        parse_spec(config | change, {})


@pytest.mark.parametrize(
    ("config", "field"),
    [(LLAMA, "vocab_size"), (PUBLISHED["Qwen3 0.6B"], "head_dim"), (GEMMA, "query_pre_attn_scalar")],
)
def test_what_is_needed_is_asked_for(config: dict[str, Any], field: str):
    with pytest.raises(UnsupportedModel, match=f"lacks '{field}'"):
        parse_spec({key: value for key, value in config.items() if key != field}, {})
