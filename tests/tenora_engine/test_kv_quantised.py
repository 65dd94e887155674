"""The quantised KV cache in plain torch: what is stored, what attention reads, and what decides a block's key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import EngineUnderTest, tiny_llama
from safetensors.torch import load_file

from tenora_adapters.base import weight_files
from tenora_adapters.blobs import FolderStore
from tenora_engine.config import KvDtype
from tenora_engine.kernels import REFERENCE
from tenora_engine.kernels.attention import AttentionBatch, Span, prepare_attention
from tenora_engine.kernels.kv import (
    LARGEST,
    SMALLEST,
    LayerKv,
    allocate_kv,
    dequantise,
    key_offset,
    kv_token_bytes,
    quantise,
    store_kv,
)
from tenora_engine.kernels.rope import rotate
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.kv_format import KvFormat, kv_format
from tenora_engine.model.weights import load_weights

CPU = torch.device("cpu")
FORMATS = pytest.mark.parametrize("dtype", LARGEST, ids=["fp8", "int8"])


@FORMATS
@pytest.mark.parametrize("amplitude", [1e-28, 1e-4, 1.0, 1e3, 1e30])
def test_each_number_within_half_a_step(dtype: torch.dtype, amplitude: float):
    """ENG-03: amplitudes far over 448 and far under 1 keep their digits: e4m3 within 2^-4 of each number in the normal
    range and half a smallest step below it, int8 within half a step of the vector's scale."""
    torch.manual_seed(0)
    vectors = torch.randn(50, 3, 64).double() * amplitude
    vectors[:, :, :8] *= 1e-3  # in one vector, numbers small beside its largest
    stored, scales = quantise(vectors.float(), dtype)
    error = (dequantise(stored.float(), scales, torch.float32).double() - vectors).abs()
    step = scales.unsqueeze(-1).double()
    bound = step / 2 if dtype is torch.int8 else torch.maximum(vectors.abs() * 2**-4, step * 2**-10)
    assert (error <= bound * (1 + 1e-5)).all()


@FORMATS
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, -1e-31])
def test_vectors_of_nearly_nothing_stay_so(dtype: torch.dtype, value: float):
    """ENG-03: no division by a scale of zero."""
    stored, scales = quantise(torch.full((2, 8), value), dtype)
    assert torch.allclose(scales, torch.tensor(SMALLEST / LARGEST[dtype]))
    assert (dequantise(stored, scales, torch.float32) - value).abs().max() <= SMALLEST / 64


@FORMATS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_own_vector_only(dtype: torch.dtype, bad: float):
    """ENG-03: it does not saturate in silence, nor does it reach its neighbours."""
    vectors = torch.randn(3, 2, 8)
    stored, scales = quantise(vectors, dtype)
    vectors[1, 0, 5] = bad
    spoiled, of_spoiled = quantise(vectors, dtype)
    assert dequantise(spoiled, of_spoiled, torch.float32)[1, 0].isnan().all()
    of_spoiled[1, 0], spoiled[1, 0] = scales[1, 0], stored[1, 0]
    assert torch.equal(of_spoiled, scales)
    assert torch.equal(spoiled.float(), stored.float())


def test_the_largest_magnitude_is_exact():
    for dtype, largest in LARGEST.items():
        stored, scales = quantise(torch.tensor([[-7.0, 3.0]]), dtype)
        assert stored.float()[0, 0] == -largest
        assert scales.item() == pytest.approx(7 / largest)


def filled(dtype: torch.dtype, keys: torch.Tensor, values: torch.Tensor, offset: torch.Tensor | None) -> LayerKv:
    """Blocks 1.. of 4 tokens, written at once."""
    num_tokens, num_kv_heads, head_dim = keys.shape
    offsets = None if offset is None else [offset]
    (cache,) = allocate_kv(1, -(-num_tokens // 4), 4, num_kv_heads, head_dim, dtype, CPU, offsets)
    store_kv(cache, keys, values, torch.arange(num_tokens) + 4)
    return cache


def attend(cache: LayerKv, q: torch.Tensor, context: int, window: int | None = None) -> torch.Tensor:
    blocks = range(1, cache.keys.shape[0])
    batch = AttentionBatch([Span(0, len(q), context, blocks)], 4)
    return prepare_attention(batch, CPU, q.dtype)(q, cache, q.shape[2] ** -0.5, window)


@FORMATS
@pytest.mark.parametrize("window", [None, 6])
def test_attention_reads_what_is_stored(dtype: torch.dtype, window: int | None):
    torch.manual_seed(0)
    keys, values = torch.randn(2, 21, 2, 8)
    q = torch.randn(5, 6, 8)
    cache = filled(dtype, keys, values, None)
    read = [dequantise(*quantise(vectors, dtype), torch.float32) for vectors in (keys, values)]
    plain = filled(torch.float32, *read, None)
    torch.testing.assert_close(attend(cache, q, 21, window), attend(plain, q, 21, window))


@FORMATS
def test_an_offset_of_keys_changes_no_result_but_the_error(dtype: torch.dtype):
    """Softmax does not see it: with keys far from zero, taking off what they share saves their differences."""
    torch.manual_seed(0)
    keys, values, offset = torch.randn(21, 2, 8), torch.randn(21, 2, 8), 100 * torch.randn(2, 8)
    q = torch.randn(5, 6, 8)
    wanted = attend(filled(torch.float32, keys, values, None), q, 21)

    def error(with_offset: torch.Tensor | None) -> float:
        got = attend(filled(dtype, keys + offset, values, with_offset), q, 21)
        return (got - wanted).abs().max().item()

    assert error(offset) < 0.1
    assert error(None) > 5 * error(offset)


def test_the_offset_is_the_biass_mean_over_positions():
    """Of pairs that turn fast there is next to nothing, of those that hardly turn all; and 0 of a bias of 0."""
    torch.manual_seed(0)
    bias = torch.randn(2, 4)
    angles = torch.arange(500).float()[:, None] * torch.tensor([1.0, 1e-6])
    table = torch.cat([angles.cos(), angles.sin()], -1)
    turned = bias.expand(500, 2, 4).clone()
    rotate(turned, table)
    offset = key_offset(bias, table)
    torch.testing.assert_close(offset, turned.mean(0), atol=1e-4, rtol=1e-4)
    assert (offset[:, [0, 2]].abs() < 0.02).all()
    torch.testing.assert_close(offset[:, [1, 3]], bias[:, [1, 3]], atol=1e-3, rtol=1e-3)
    assert not key_offset(torch.zeros(2, 4), table).any()


def test_only_a_quantised_cache_of_a_model_with_biases_has_an_offset(tmp_path: Path):
    made: dict[bool, dict[torch.dtype, KvFormat]] = {}
    for has_bias in (False, True):
        folder = tiny_llama(tmp_path / str(has_bias), attention_bias=has_bias, rope_theta=1e9)
        spec = read_spec(folder)
        weights = load_weights(weight_files(folder), spec, torch.float32, CPU, REFERENCE.make_linear)
        made[has_bias] = {dtype: kv_format(dtype, spec, weights) for dtype in (torch.float32, *LARGEST)}
    assert [kv.key_offsets is None for kv in made[False].values()] == [True, True, True]
    assert [kv.key_offsets is None for kv in made[True].values()] == [True, False, False]
    offsets = made[True][torch.int8].key_offsets
    assert offsets is not None
    for index, offset in enumerate(offsets):  # of the pair that turns slowest, what the checkpoint has as the bias of k
        bias = load_file(tmp_path / "True" / "model.safetensors")[f"model.layers.{index}.self_attn.k_proj.bias"]
        torch.testing.assert_close(offset[:, [3, 7]], bias.view(2, 8)[:, [3, 7]], atol=1e-3, rtol=0)
    names = [kv.name for formats in made.values() for kv in formats.values()]
    assert len(set(names)) == 5  # a plain cache has one name; ENG-03: all else is told apart


def test_bytes_of_a_token_are_those_that_are_allocated():
    for dtype in (torch.float32, torch.bfloat16, *LARGEST):
        (cache,) = allocate_kv(1, 9, 4, 3, 16, dtype, CPU)
        assert sum(pages.nbytes for pages in cache.pages) == 40 * kv_token_bytes(3, 16, dtype)


def prompts(engine: EngineUnderTest) -> list[list[int]]:
    return [[3 + (7 * seed + 11 * i) % 120 for i in range(40)] for seed in range(3)]


@pytest.mark.parametrize("kv_dtype", [KvDtype.FP8, KvDtype.INT8])
def test_an_engine_on_a_quantised_cache(tmp_path: Path, kv_dtype: KvDtype):
    """ENG-03: blocks written by prefilling and read by decoding, and read again from the prefix cache, say the same:
    each token's log-probability is that of a new prefill of all tokens before it."""
    model, store = tiny_llama(tmp_path / "model", attention_bias=True), FolderStore(tmp_path / "blobs")
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "max_batch_tokens": 48}
    engine = EngineUnderTest(model, store, **options)
    try:
        assert engine.core.capacity.kv_dtype.startswith(str(list(LARGEST)[kv_dtype is KvDtype.INT8])[6:])
        for prompt in prompts(engine):
            answer = engine.ask(prompt, max_tokens=12, logprobs=0)
            again = engine.ask([*prompt, *answer.text], max_tokens=0, prompt_logprobs=0).prompt_logprobs
            assert again is not None
            for drawn, read in zip(answer.logprobs[0], again[len(prompt) :], strict=True):
                assert read is not None
                assert drawn.token_id == read.token_id
                assert drawn.logprob == pytest.approx(read.logprob, abs=0.05)
            assert engine.ask(prompt, max_tokens=12).text == answer.text
        engine.assert_at_rest()
    finally:
        engine.close()
