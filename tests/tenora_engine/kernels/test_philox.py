"""The generator against its authors' vectors, and the noise against the layout that the module promises."""

from __future__ import annotations

import math

import pytest
import torch

from tenora_engine.kernels.philox import exponential_of_tokens, exponential_of_vocabulary, philox4x32

ONES = 0xFFFFFFFF
# kat_vectors of the Random123 library, philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], want: tuple[int, ...]):
    assert tuple(int(word) for word in philox4x32(words(*counter), words(*key))) == want


@pytest.mark.parametrize("token_id", [0, 1, 2, 3, 4, 49_150, 262_143])
def test_the_layout_is_the_documented_one(token_id: int):
    """What a kernel in another language has to reproduce, spelled out for one token."""
    seed, position, choice = 0xFEDCBA9876543210, 70_000, 3
    key = (seed & ONES, seed >> 32)
    block = philox4x32(words(token_id // 4, position, choice, 0), words(*key))
    want = -math.log((int(block[token_id % 4]) + 0.5) / 2**32)
    keys = torch.tensor([[*key, position, choice]])
    alone = exponential_of_tokens(keys, torch.tensor([[token_id]]))
    assert float(alone[0, 0]) == float(torch.tensor(want, dtype=torch.float32))
    assert exponential_of_vocabulary(keys, token_id + 1)[0, token_id] == alone[0, 0]


def test_noise_is_exponential():
    """Kolmogorov-Smirnov against 1 - exp(-x): the distance of n samples exceeds 1.95 / sqrt(n) once in 1,000."""
    keys = torch.tensor([[7, 0, position, 0] for position in range(40)])
    noise = exponential_of_vocabulary(keys, 5000).flatten().double().sort().values
    num = len(noise)
    below = torch.arange(num, dtype=torch.float64) / num
    share = 1 - (-noise).exp()
    assert float((share - below).abs().max()) < 1.95 / math.sqrt(num)
    assert float(noise[0]) > 1e-10
    assert float(noise[-1]) < 22.9


def test_streams_do_not_repeat():
    """Seeds, positions, choices and tokens that lie side by side share no noise."""
    keys = torch.tensor([[s, h, p, c] for s in range(3) for h in range(2) for p in range(5) for c in range(3)])
    noise = exponential_of_vocabulary(keys, 100)
    # Of 9,000 values rounded to 24 bits one or two pairs are equal by chance.
    assert len(noise.unique()) > noise.numel() - 10
