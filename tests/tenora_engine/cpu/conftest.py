"""The native library in each instruction set of this machine; without a library there is nothing to test here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenora_engine.cpu import library
from tenora_engine.cpu.native import Native

if other := os.environ.get("TENORA_TEST_NATIVE_LIBRARY"):  # of test_sanitized.py
    library.LIBRARY_FILE = Path(other)  # type: ignore[misc]


@pytest.fixture(scope="session", params=library.ISAS)
def native(request: pytest.FixtureRequest) -> Native:
    """Three threads, so that work is shared out unevenly."""
    opened = library.open_library(3, request.param)
    if opened is None:
        pytest.skip(f"{request.param} does not run here, or the library was not built")
    return Native(opened)
