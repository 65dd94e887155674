"""Runs the files whose kernels are interpreted, each in a process of its own, where triton is imported for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(file.name for file in Path(__file__).parent.glob("*_numerics.py"))


@pytest.mark.parametrize("file", FILES)
def test_in_the_interpreter(file: str):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0, run.stdout
