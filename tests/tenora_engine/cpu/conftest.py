"""The native library in each instruction set of this machine; without a library there is nothing to test here."""

from __future__ import annotations

import pytest

from tenora_engine.cpu.library import ISAS, open_library
from tenora_engine.cpu.native import Native


@pytest.fixture(scope="session", params=ISAS)
def native(request: pytest.FixtureRequest) -> Native:
    """Three threads, so that work is shared out unevenly."""
    library = open_library(3, request.param)
    if library is None:
        pytest.skip(f"{request.param} does not run here, or the library was not built")
    return Native(library)
