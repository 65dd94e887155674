"""Paged attention and the write to its cache, compiled for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compiled import HOPPER, TARGETS
from shipped import check
from shipped_attention import (
    BF16,
    FP8,
    INT8,
    Attend,
    Merge,
    Place,
    ShippedAttention,
    default_attention,
)
from triton import knobs
from triton.backends.compiler import GPUTarget


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here is compiled, not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        patch.setattr(knobs.cache, "dir", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
def test_default_configurations(target: GPUTarget):
    for item in default_attention(target):
        check(item, target)


@pytest.mark.parametrize(
    ("item", "num_small"),
    [(Attend(BF16, FP8, 128, 16), 1), (Merge(BF16, 128), 1), (Place(BF16, INT8, 128), 2)],
    ids=str,
)
def test_offsets_are_of_64_bits(item: ShippedAttention, num_small: int):
    """A cache passes 2^31 elements, and so do rows of scratch. In 32 bits stay the products of a head (of queries; of
    the keys' offset) with its size, and of a part with the tokens of its tile: these are small by their nature."""
    products = [line for line in item.compile(HOPPER).asm["ttir"].splitlines() if "arith.muli" in line]
    assert any("xi64>" in line for line in products)
    assert sum("xi32>" in line for line in products) == num_small
