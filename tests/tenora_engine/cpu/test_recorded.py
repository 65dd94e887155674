"""A decoder recorded as one call against the same decoder, operation by operation: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import EngineUnderTest, World
from families import FAMILIES, tiny_model

from tenora_engine.assemble import choose_dtype, choose_kernels
from tenora_engine.config import CpuKernels, Dtype, EngineConfig, Weights
from tenora_engine.cpu import native as native_module
from tenora_engine.cpu.native import native_for
from tenora_engine.cpu.recorded import RecordedDecoder, record
from tenora_engine.errors import StartError
from tenora_engine.kernels import REFERENCE
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.lora.weights import DeviceSlots
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.weights import load_weights

CPU = torch.device("cpu")
BLOCK = 16
needs_library = pytest.mark.skipif(native_for(1) is None, reason="the library was not built")


def decoder_of(engine: EngineUnderTest) -> Decoder:
    return engine.engine.executor._runner._decoder


@needs_library
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_for_steps_of_any_size(tmp_path: Path, family: str):
    """Every family's flags; a step as large as was recorded, smaller ones, and one that is larger and runs apart."""
    native = native_for(2)
    assert native is not None
    model = tiny_model(tmp_path / family, family)
    spec = read_spec(model)
    weights = load_weights([*model.glob("*.safetensors")], spec, torch.bfloat16, CPU, native.kernels.make_linear)
    cache = allocate_kv(spec.num_layers, 8, BLOCK, spec.num_kv_heads, spec.head_dim, torch.bfloat16, CPU)
    adapters = DeviceSlots(1, spec, native.kernels, torch.bfloat16, CPU).adapters
    plain = Decoder(spec, weights, native.kernels)
    recorded = record(plain, cache, adapters, num_rows=40, num_threads=2)
    assert isinstance(recorded, RecordedDecoder)
    for num_rows in (40, 1, 7, 41):
        batch = Batch(
            token_ids=torch.arange(num_rows) % 100,
            positions=torch.arange(num_rows),
            places=torch.arange(BLOCK, BLOCK + num_rows),
            attention=native.kernels.prepare_attention(
                AttentionBatch([Span(0, num_rows, num_rows, [1, 2, 3])], BLOCK), CPU, torch.bfloat16
            ),
            add_lora=native.kernels.prepare_lora([], CPU),
        )
        with torch.inference_mode():
            want, got = (decoder.forward(batch, cache, adapters) for decoder in (plain, recorded))
        assert got.isfinite().all()
        assert torch.equal(got, want)


@needs_library
def test_an_engine_records_its_decoder(make_engine: Callable[..., EngineUnderTest]):
    """Else the tests of the engine would not see what is served; and where it cannot, it runs all the same."""
    assert isinstance(decoder_of(make_engine()), RecordedDecoder)
    assert not isinstance(decoder_of(make_engine(cpu_kernels=CpuKernels.TORCH)), RecordedDecoder)
    quantised = make_engine(kv_dtype="int8")
    assert not isinstance(decoder_of(quantised), RecordedDecoder)
    assert len(quantised.ask([5, 6, 7]).text) == 16


@needs_library
def test_native_and_torch_say_the_same(make_engine: Callable[..., EngineUnderTest], world: World):
    """Base and adapters in one batch, chunked prompts, on both: the same tokens, and log-probabilities to 1e-4."""

    def run(**options: Any) -> list[tuple[list[int], list[float]]]:
        engine = make_engine(max_batch_tokens=40, **options)
        asked = [
            engine.submit(range(3, 3 + length), world.uses(name), max_tokens=20, logprobs=0)
            for length, name in ((50, None), (5, "r1"), (33, "r4"), (90, "r8"), (16, "r64"))
        ]
        answers = engine.finish()
        return [(answers[a].text, [entry.logprob for entry in answers[a].logprobs[0]]) for a in asked]

    for (tokens, logprobs), (want_tokens, want) in zip(run(), run(cpu_kernels=CpuKernels.TORCH), strict=True):
        assert tokens == want_tokens
        assert logprobs == pytest.approx(want, abs=1e-4)


@needs_library
def test_int8_weights_are_near(make_engine: Callable[..., EngineUnderTest]):
    """Nearer than a whole nat on noise; its perplexity on a real model stands in docs/cpu-speed.md."""
    prompt = list(range(3, 60))

    def logprobs(**options: Any) -> torch.Tensor:
        got = make_engine(**options).ask(prompt, max_tokens=0, prompt_logprobs=0).prompt_logprobs
        assert got is not None
        return torch.tensor([entry.logprob for entry in got if entry is not None])

    difference = (logprobs(weights=Weights.INT8) - logprobs()).abs()
    assert 0 < difference.mean() < 0.3


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Torch computes, and says that it is slow; who insists on the library is told why the engine does not start."""
    monkeypatch.setattr(native_module, "open_library", lambda num_threads: None)
    native_for.cache_clear()
    try:
        config = EngineConfig(listen="", model=Path(), blobs="")
        assert choose_kernels(config, CPU, 1) is REFERENCE
        assert "several times slower" in caplog.text
        for options in ({"cpu_kernels": CpuKernels.NATIVE}, {"weights": Weights.INT8}):
            with pytest.raises(StartError, match="native library"):
                choose_kernels(EngineConfig(listen="", model=Path(), blobs="", **options), CPU, 1)  # type: ignore[arg-type]
    finally:
        native_for.cache_clear()


def test_dtype_of_the_kernels():
    native = native_for(1)
    assert choose_dtype(Dtype.FP32, REFERENCE) is torch.float32
    assert choose_dtype(Dtype.BF16, REFERENCE) is torch.bfloat16
    if native is not None:
        assert choose_dtype(Dtype.AUTO, native.kernels) is torch.bfloat16
