"""One draw per row by an exponential race: of all tokens i with weights p_i, the one whose p_i / e_i is largest wins,
where e_i are independent exponential variates (`philox` says which). It wins with probability p_i / sum(p).

The kernel and its launcher are in `race`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tenora_engine.kernels.philox import exponential_of_vocabulary

# Noise made at once, in tokens: bounds the memory of a large batch over a large vocabulary.
_TOKENS_AT_ONCE: Final = 1 << 22


def race(weights: Tensor, keys: Tensor) -> Tensor:
    """Winners over the whole vocabulary; of equal scores the lowest token id.

    weights: fp32 [rows, vocab], >= 0, one above 0; keys: int64 [rows, 4], of the noise -> int64 [rows].
    """
    vocab_size = weights.shape[1]
    at_once = max(1, _TOKENS_AT_ONCE // vocab_size)
    winners = [
        (
            weights[begin : begin + at_once] / exponential_of_vocabulary(keys[begin : begin + at_once], vocab_size)
        ).argmax(-1)
        for begin in range(0, len(weights), at_once)
    ]
    return torch.cat(winners)  # of equals, argmax gives the first
