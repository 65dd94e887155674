"""What of the exponential race (`kernels.draw`) lies with the sampler: whose noise it is, and a race among some tokens.

The noise of a token is keyed by its id, never by where it stands in a tensor: the winner among some candidates is the
winner among all tokens as long as the others weigh nothing. Of equal scores the lowest token id wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from tenora_engine.kernels.philox import exponential_of_tokens
from tenora_engine.sampler.rows import Row

# Weights fp32 [rows, vocab] and noise keys int64 [rows, 4] -> winners int64 [rows]: `Kernels.race`.
Race: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def noise_keys(rows: Sequence[Row], device: torch.device) -> Tensor:
    """What decides the noise of each row: int64 [rows, 4], as `philox` wants it."""
    keys = []
    for row in rows:
        seed = row.sampling.seed
        assert seed is not None
        keys.append((seed & 0xFFFFFFFF, seed >> 32, row.position, row.sequence.choice))
    return torch.tensor(keys, dtype=torch.int64, device=device)


def race_among(weights: Tensor, token_ids: Tensor, keys: Tensor) -> Tensor:
    """Winners among some tokens. weights: fp32 [rows, n]; token_ids: int64 [rows, n], in any order -> int64 [rows]."""
    scores = weights / exponential_of_tokens(keys, token_ids)
    winning = scores == scores.amax(dim=-1, keepdim=True)
    return token_ids.masked_fill(~winning, torch.iinfo(torch.int64).max).amin(dim=-1)
