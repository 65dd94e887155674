"""Finding the native library, and refusing one of another build."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from tenora_engine.cpu import library
from tenora_engine.cpu.abi import STRUCTS

needs_library = pytest.mark.skipif(not library.LIBRARY_FILE.exists(), reason="the library was not built")


@pytest.fixture(autouse=True)
def _loaded_anew():
    library._load.cache_clear()
    library.open_library.cache_clear()
    yield
    library._load.cache_clear()
    library.open_library.cache_clear()


@needs_library
def test_the_best_instruction_set_is_taken():
    names = [name for name in library.ISAS if library.open_library(1, name) is not None]
    assert names[-1] == "portable"
    best = library.open_library(1)
    assert best is not None
    assert best.isa_name == names[0]
    assert library.open_library(1, "mmx") is None


def test_none_where_it_was_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(library, "LIBRARY_FILE", tmp_path / "libtenora_cpu.so")
    assert library.open_library(1) is None


def test_none_where_it_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "libtenora_cpu.so").write_bytes(b"not a library")
    monkeypatch.setattr(library, "LIBRARY_FILE", tmp_path / "libtenora_cpu.so")
    assert library.open_library(1) is None
    assert "cannot be loaded" in caplog.text


@needs_library
def test_none_where_its_structs_are_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    class Longer(ctypes.Structure):
        _fields_ = (*STRUCTS[0]._fields_, ("more", ctypes.c_int64))

    monkeypatch.setattr(library, "STRUCTS", (Longer, *STRUCTS[1:]))
    with caplog.at_level(logging.WARNING):
        assert library.open_library(1) is None
    assert "another build" in caplog.text
