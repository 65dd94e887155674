"""The exponential race over a whole vocabulary, with its noise made on the way and stored nowhere.

    winner[row] = argmax over tokens of weights[row, token] / e(row, token)

The reference is `draw.race`; the layout of the noise e is that of `philox`. Of equals the lowest token wins.
Each program finds the winner of a block of tokens, a reduction that of the blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.launch_table import find, target_of


@triton.jit
def race_kernel(
    scores,  # fp32 [rows, num_blocks]
    winners,  # int64 [rows, num_blocks]
    weights,  # fp32 [rows, vocab_size]
    keys,  # int64 [rows, 4]: low and high word of the seed, position, choice
    vocab_size,
    block: tl.constexpr,
):
    """Program (row, block of tokens)."""
    row = tl.program_id(0).to(tl.int64)
    key = keys + row * 4
    seed = tl.load(key) | (tl.load(key + 1) << 32)
    position, choice = tl.load(key + 2).to(tl.uint32), tl.load(key + 3).to(tl.uint32)
    group = tl.program_id(1) * (block // 4) + tl.arange(0, block // 4)  # of four tokens
    zero = tl.zeros_like(group).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, group.to(tl.uint32), zero + position, zero + choice, zero)
    best, token = score_of(weights + row * vocab_size, group * 4, w0, vocab_size)
    best, token = better(best, token, weights + row * vocab_size, group * 4 + 1, w1, vocab_size)
    best, token = better(best, token, weights + row * vocab_size, group * 4 + 2, w2, vocab_size)
    best, token = better(best, token, weights + row * vocab_size, group * 4 + 3, w3, vocab_size)
    peak = tl.max(best, 0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(scores + place, peak)
    tl.store(winners + place, tl.min(tl.where(best == peak, token, vocab_size), 0).to(tl.int64))


@triton.jit
def score_of(weights, token, word, vocab_size):
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32
    noise = (-tl.log(uniform)).to(tl.float32)
    weight = tl.load(weights + token, mask=token < vocab_size, other=-1.0)  # below that of any token
    return tl.div_rn(weight, noise), token


@triton.jit
def better(best, token, weights, other_token, word, vocab_size):
    """The better of two tokens, the first of equals."""
    score, _ = score_of(weights, other_token, word, vocab_size)
    return tl.maximum(best, score), tl.where(score > best, other_token, token)


def race(weights: Tensor, keys: Tensor) -> Tensor:
    """weights: fp32 [rows, vocab], >= 0, one above 0; keys: int64 [rows, 4] -> int64 [rows]."""
    num_rows, vocab_size = weights.shape
    weights = weights.contiguous()
    launch = find("race", target_of(weights.device), weights.dtype)
    num_blocks = triton.cdiv(vocab_size, launch["block"])
    scores = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=weights.device)
    winners = torch.empty(num_rows, num_blocks, dtype=torch.int64, device=weights.device)
    race_kernel[(num_rows, num_blocks)](scores, winners, weights, keys.contiguous(), vocab_size, **launch)
    return winners.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
