"""Runs the files whose kernels are interpreted, in processes of their own, where triton is imported for that; and all
of it by the oldest triton that is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NUMERICS = {file.name for file in Path(__file__).parent.glob("*_numerics.py")}
# The engine's has memory of its own, which is not poisoned; the others share a process, and what it takes to start one.
ALONE = {"engine_numerics.py"}
NOT_OF_KERNELS = {"roofline_numerics.py", "tune_numerics.py"}


@pytest.mark.parametrize("files", [NUMERICS - ALONE, ALONE], ids=["kernels", "engine"])
@pytest.mark.timeout(600)
def test_in_the_interpreter(files: set[str]):
    interpret(files)


def interpret(files: set[str], **environment: str) -> None:
    paths = [str(Path(__file__).with_name(file)) for file in sorted(files)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "TRITON_INTERPRET": "1", **environment}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0, run.stdout


@pytest.fixture(scope="module")
def oldest_triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one that torch 2.11 brings; here, beside the newer one installed. Its interpreter takes loop bounds of
    arrays with one element, which numpy refuses since 2.4."""
    folder = tmp_path_factory.mktemp("triton-3.6")
    options = ["-q", "--no-deps", "--disable-pip-version-check", "--root-user-action=ignore", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, "triton==3.6.0", "numpy==2.2.6"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # pip's own warnings
    assert run.returncode == 0, run.stdout
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)
def test_compiled_by_the_oldest_triton(repository: Path, oldest_triton: Path):
    report = [sys.executable, str(repository / "bench/kernel_report.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(oldest_triton)}
    run = subprocess.run(report, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "triton 3.6.0" in run.stdout
    assert run.returncode == 0, run.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("files", [NUMERICS - ALONE - NOT_OF_KERNELS, ALONE], ids=["kernels", "engine"])
def test_interpreted_by_the_oldest_triton(oldest_triton: Path, files: set[str]):
    interpret(files, PYTHONPATH=str(oldest_triton), TENORA_TEST_TRITON="3.6.0")
