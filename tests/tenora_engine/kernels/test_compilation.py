"""The kernels in their shipped configurations, compiled for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from compiled import HOPPER, TARGETS, read_report
from shipped import REPORT, check, defaults, everything, outcome, shipped
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
    for item in defaults():
        check(item, target)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_configurations(monkeypatch: pytest.MonkeyPatch):
    """On all cores: these are hundreds, some of which take the compiler seconds."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    asked = [(at, target) for at, item in enumerate(everything()) for target in TARGETS if item.runs_on(target)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as compilers:
        outcomes = list(compilers.map(outcome, *zip(*asked, strict=True)))
    assert len(outcomes) > 300
    assert not [wrong for wrong in outcomes if wrong]


def test_the_report_has_every_configuration(repository: Path):
    """And is of the triton that is pinned: what it says is compared wherever that one compiles."""
    report = REPORT.read_text()
    assert {name for name, _ in read_report(report)} == {str(item) for item in everything()}
    pinned = re.search(r"^triton==(.+)$", (repository / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert f"triton {pinned[1]}:" in report


@pytest.mark.parametrize("name", ["bgmv", "shrink", "expand", "gather", "norm", "gated", "race"])
def test_offsets_are_of_64_bits(name: str):
    """Rows times strides pass 2^31 elements with a long prompt and a large vocabulary: only scalars that are small by
    their nature (four words for each tile, a place in the grid) are multiplied in 32 bits, no vector of rows is."""
    item = next(item for item in shipped() if item.name.startswith(name))
    products = [line for line in item.compile(HOPPER).asm["ttir"].splitlines() if "arith.muli" in line]
    assert any("i64" in line for line in products)
    narrow = [line for line in products if "xi32>" in line]
    # The race's are its noise's, and the place of a group of four tokens in the vocabulary.
    assert not narrow or name == "race"
