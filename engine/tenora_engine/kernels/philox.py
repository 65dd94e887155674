"""Noise of which nothing is stored: Philox4x32-10, a counter-based generator, and exponential variates from it.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11). In integer operations alone, so that every device
gives the same bits. The layout, for whoever writes it again as a kernel (all words are unsigned, of 32 bits):

    key       k0 = seed mod 2^32        k1 = seed div 2^32
    counter   c0 = token id div 4       c1 = position       c2 = choice       c3 = 0
    word      w  = output word number (token id mod 4) of philox(counter, key)
    uniform   u  = (w + 0.5) * 2^-32    in fp64: exact, never 0 and never 1
    noise     e  = -ln(u)               in fp64, then rounded to fp32; 1.1e-10 < e < 22.9

`position` is the index in the sequence of the token to be drawn, `choice` the number of the choice within its request.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # what the key grows by from round to round
_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF
_WORDS_PER_BLOCK: Final = 4


def philox4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four random words per counter and key. All are int64 tensors of 32-bit words, and broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products wrap at 64 bits and may turn negative: both halves are right once they are masked.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> 32 ^ c1 ^ k0) & _WORD, product1
        c2, c3 = (product0 >> 32 ^ c3 ^ k1) & _WORD, product0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1 & _WORD, c2, c3 & _WORD


def exponential_of_vocabulary(keys: Tensor, vocab_size: int) -> Tensor:
    """Noise of every token. keys: int64 [rows, 4] of (k0, k1, position, choice) -> fp32 [rows, vocab_size]."""
    num_blocks = -(-vocab_size // _WORDS_PER_BLOCK)
    words = _block(keys, torch.arange(num_blocks, device=keys.device)[None])  # of [rows, num_blocks]
    return _exponential(torch.stack(words, dim=-1).flatten(1)[:, :vocab_size])


def exponential_of_tokens(keys: Tensor, token_ids: Tensor) -> Tensor:
    """The same noise, of some tokens only. keys: int64 [rows, 4]; token_ids: int64 [rows, n] -> fp32 [rows, n]."""
    words = torch.stack(_block(keys, token_ids // _WORDS_PER_BLOCK), dim=-1)  # [rows, n, 4]
    return _exponential(words.gather(-1, (token_ids % _WORDS_PER_BLOCK)[..., None])[..., 0])


def _block(keys: Tensor, blocks: Tensor) -> Words:
    k0, k1, position, choice = keys[:, :, None].unbind(1)  # each [rows, 1]
    return philox4x32((blocks, position, choice, torch.zeros_like(choice)), (k0, k1))


def _exponential(words: Tensor) -> Tensor:
    return -((words.double() + 0.5) * 2.0**-32).log().float()
