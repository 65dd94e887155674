"""One draw per row by an exponential race: of all tokens i with weights p_i, the one whose p_i / e_i is largest wins,
where e_i are independent exponential variates. It wins with probability p_i / sum(p).

The noise of a token is keyed by its id, never by where it stands in a tensor: the winner among some candidates is the
winner among all tokens as long as the others weigh nothing. Of equal scores the lowest token id wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tenora_engine.kernels.philox import exponential_of_tokens, exponential_of_vocabulary
from tenora_engine.sampler.rows import Row

# Noise made at once, in tokens: bounds the memory of a large batch over a large vocabulary.
_TOKENS_AT_ONCE: Final = 1 << 22


def noise_keys(rows: Sequence[Row], device: torch.device) -> Tensor:
    """What decides the noise of each row: int64 [rows, 4], as `philox` wants it."""
    keys = []
    for row in rows:
        seed = row.sampling.seed
        assert seed is not None
        keys.append((seed & 0xFFFFFFFF, seed >> 32, row.position, row.sequence.choice))
    return torch.tensor(keys, dtype=torch.int64, device=device)


def race(weights: Tensor, keys: Tensor) -> Tensor:
    """Winners over the whole vocabulary. weights: fp32 [rows, vocab], >= 0, one above 0 -> int64 [rows].

    On a GPU one kernel makes noise and scores on the way, and keeps neither.
    """
    if weights.is_cuda:
        from tenora_engine.kernels.race import race as race_on_gpu  # imports triton

        return race_on_gpu(weights, keys)
    vocab_size = weights.shape[1]
    at_once = max(1, _TOKENS_AT_ONCE // vocab_size)
    winners = [
        (
            weights[begin : begin + at_once] / exponential_of_vocabulary(keys[begin : begin + at_once], vocab_size)
        ).argmax(-1)
        for begin in range(0, len(weights), at_once)
    ]
    return torch.cat(winners)  # of equals, argmax gives the first


def race_among(weights: Tensor, token_ids: Tensor, keys: Tensor) -> Tensor:
    """Winners among some tokens. weights: fp32 [rows, n]; token_ids: int64 [rows, n], in any order -> int64 [rows]."""
    scores = weights / exponential_of_tokens(keys, token_ids)
    winning = scores == scores.amax(dim=-1, keepdim=True)
    return token_ids.masked_fill(~winning, torch.iinfo(torch.int64).max).amin(dim=-1)
