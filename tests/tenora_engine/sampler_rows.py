"""Rows for the sampler's tests: choices in the state that a test wants, and draws over many seeds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.sampler import Row, sample
from tenora_engine.wire import Sampling

VOCAB = 16


def row(
    prompt: list[int],
    generated: list[int] | None = None,
    *,
    drafts: tuple[int, ...] = (),
    choice: int = 0,
    **sampling: Any,
) -> Row:
    settings = Sampling(**({"seed": 0, "max_tokens": 100} | sampling))
    request = Request(
        key=RequestKey(b"", "r"),
        tenant="t",
        prompt=prompt,
        sampling=settings,
        adapters=(),
        cache_root=b"",
        stop_token_ids=frozenset(settings.stop_token_ids),
        max_new_tokens=settings.max_tokens,
    )
    sequence = Sequence(request, choice, list(prompt))
    request.sequences = [sequence]
    for token in generated or []:
        sequence.append(token)
    return Row(sequence, drafts)


def logits_of(seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """fp32 [vocab], with clear margins."""
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: Tensor, num: int = 300, **sampling: Any) -> list[int]:
    """The tokens for `num` seeds."""
    rows = [row([1], seed=seed, **sampling) for seed in range(num)]
    return [sampled.token_id for sampled in sample(logits.repeat(num, 1), rows)]


def mask_of(allowed: set[int], vocab: int = VOCAB) -> Tensor:
    """int32 [1, words], as xgrammar lays it out."""
    words = [sum(1 << token % 32 for token in allowed if token // 32 == word) for word in range(-(-vocab // 32))]
    return torch.tensor([words], dtype=torch.int64).to(torch.int32)
