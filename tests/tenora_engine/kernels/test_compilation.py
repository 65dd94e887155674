"""The kernels in their shipped configurations, compiled for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled import HOPPER, TARGETS
from shipped import Shipped, check, defaults, shipped
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
def test_default_configurations(target: GPUTarget, tmp_path: Path):
    for item in defaults():
        check(item, target, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("item", list(shipped()), ids=str)
def test_all_configurations(item: Shipped, target: GPUTarget, tmp_path: Path):
    check(item, target, tmp_path)


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


@pytest.mark.long
def test_on_the_oldest_triton(repository: Path, tmp_path: Path):
    """The one that torch 2.11 brings; here, beside the newer one that is installed."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), "triton==3.6.0"]
    subprocess.run(install, check=True)
    report = [sys.executable, str(repository / "bench/kernel_report.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(report, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "triton 3.6.0" in run.stdout
    assert run.returncode == 0, run.stdout
