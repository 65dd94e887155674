"""A whole engine on the Triton kernels, interpreted, against one on the reference. Run by test_interpreter.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import TINY_VOCAB, EngineUnderTest, World, tiny_llama
from interpreted import numbers_as_on_a_gpu  # noqa: F401  # applies by itself

from tenora_engine import assemble
from tenora_engine.config import KvDtype
from tenora_engine.kernels import lora_apply, lora_launch, on_triton
from tenora_engine.wire import AdapterUse


def answers(engine: EngineUnderTest, world: World) -> list[Any]:
    """Base and three adapters in one batch, one request with two of them; prompts in chunks beside decodes; tokens are
    drawn where there is no adapter."""
    r4, r8 = (AdapterUse(world.digests[name], scale) for name, scale in (("r4", 1.0), ("r8", 0.5)))
    mixes: list[list[Any]] = [[], world.uses("r1"), [r4], [r8], [r4, r8]]
    ids = []
    for seed, uses in enumerate(mixes):
        prompt = random.Random(seed).choices(range(3, TINY_VOCAB), k=5 + 6 * seed)
        drawn = {} if uses else {"temperature": 1.0, "seed": 7}
        ids.append(engine.submit(prompt, uses, max_tokens=3, logprobs=0, prompt_logprobs=0, **drawn))
    told = engine.finish()  # in the order in which they ended, which hangs on when adapters were loaded
    engine.assert_at_rest()
    return [(answer.text, answer.prompt_logprobs, answer.logprobs[0]) for answer in map(told.__getitem__, ids)]


def test_the_engine_answers_as_on_the_reference(
    make_engine: Callable[..., EngineUnderTest], world: World, monkeypatch: pytest.MonkeyPatch
):
    wanted = answers(make_engine(max_batch_tokens=40), world)
    launched = set()

    def watched(kernel: str, launch: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            launched.add(kernel)
            return launch(*arguments)

        return noted

    for kernel in ("bgmv", "shrink", "expand"):
        monkeypatch.setattr(lora_apply, kernel, watched(kernel, getattr(lora_apply, kernel)))
    monkeypatch.setattr(lora_launch, "DECODE_ROWS", 20)  # so that this little batch takes both ways
    kernels = replace(on_triton.TRITON, race=watched("race", on_triton.TRITON.race))
    monkeypatch.setattr(assemble, "kernels_for", lambda *_: kernels)
    got = answers(make_engine(max_batch_tokens=40), world)
    assert launched == {"bgmv", "shrink", "expand", "race"}
    for (text, prompt, logprobs), (want_text, want_prompt, want_logprobs) in zip(got, wanted, strict=True):
        assert text == want_text
        for entry, want in zip([*prompt[1:], *logprobs], [*want_prompt[1:], *want_logprobs], strict=True):
            assert entry.token_id == want.token_id
            assert entry.logprob == pytest.approx(want.logprob, abs=1e-4)


@pytest.mark.parametrize("kv_dtype", [KvDtype.FP8, KvDtype.INT8])
def test_on_a_quantised_cache(
    make_engine: Callable[..., EngineUnderTest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv_dtype: KvDtype
):
    """A model with biases, so that keys have an offset: prompts in chunks and decoding, as on the reference up to what
    a number does that falls on the other side of a rounding."""
    model = tiny_llama(tmp_path / "model", attention_bias=True)
    prompts = [random.Random(seed).choices(range(3, TINY_VOCAB), k=10 + 9 * seed) for seed in range(2)]

    def logprobs() -> list[list[float]]:
        engine = make_engine(model, kv_dtype=kv_dtype, max_batch_tokens=16, max_sequences=4)
        ids = [engine.submit(prompt, max_tokens=2, logprobs=0, prompt_logprobs=0) for prompt in prompts]
        told = engine.finish()
        answers = [told[request_id] for request_id in ids]
        return [[entry.logprob for entry in [*a.prompt_logprobs[1:], *a.logprobs[0]]] for a in answers]

    wanted = logprobs()
    monkeypatch.setattr(assemble, "kernels_for", lambda *_: on_triton.TRITON)
    for got, want in zip(logprobs(), wanted, strict=True):
        assert got == pytest.approx(want, abs=0.05)
