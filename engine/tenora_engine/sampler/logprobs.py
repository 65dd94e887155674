"""Log-probabilities of the model's own distribution: before temperature, penalties, bias and grammar."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_engine.wire import TokenLogprob


def logprobs_of(logits: Tensor, token_ids: Sequence[int], num_top: int | Sequence[int]) -> list[TokenLogprob]:
    """Log-probability of one given token per row, and of the `num_top` best. logits: fp32 [rows, vocab]."""
    each = [num_top] * len(token_ids) if isinstance(num_top, int) else num_top
    normaliser = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None]) - normaliser
    best = logits.topk(max(each, default=0))
    columns = (chosen[:, 0].tolist(), best.indices.tolist(), (best.values - normaliser).tolist())
    return [
        TokenLogprob(token_id, logprob, tuple(zip(top_ids[:num], top[:num], strict=True)))
        for token_id, num, logprob, top_ids, top in zip(token_ids, each, *columns, strict=True)
    ]
