"""The operations' own tests once more, on a library that checks every access and every conversion (ASan, UBSan)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Unaligned access is what this library does all the time, with memcpy and with vector loads.
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs GCC")
def test_no_access_out_of_bounds(repository: Path, tmp_path: Path):
    build = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        tmp_path,
        "--build-temp",
        tmp_path / "objects",
    ]
    subprocess.run(build, cwd=repository, env=os.environ | {"TENORA_NATIVE_FLAGS": FLAGS}, check=True)
    library = tmp_path / "tenora_engine" / "cpu" / "libtenora_cpu.so"
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # of Python and torch
        "TENORA_TEST_NATIVE_LIBRARY": str(library),
    }
    tests = ["tests/tenora_engine/cpu/test_native.py", "tests/tenora_engine/cpu/test_recorded.py"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=repository,
        env=environment,
        check=True,
    )
