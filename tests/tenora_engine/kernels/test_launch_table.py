"""Who computes where, and by which table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tenora_engine.assemble import choose_kernels
from tenora_engine.config import EngineConfig
from tenora_engine.errors import StartError
from tenora_engine.kernels import kernels_for, launch_table
from tenora_engine.kernels.launch_table import OWN_TABLE, SHIPPED, read_rows, write_rows
from tenora_engine.kernels.on_triton import TRITON

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh_table() -> Iterator[None]:
    launch_table._table.cache_clear()
    yield
    launch_table._table.cache_clear()


def test_a_gpu_computes_by_triton_and_a_cpu_does_not():
    assert kernels_for(GPU) is TRITON
    assert kernels_for(torch.device("cpu")) is not TRITON


@pytest.mark.parametrize("content", [None, "", "{}", '[{"op": "gated"}]', '[{"operation": 1}]'])
def test_what_is_no_table_is_told_at_the_start(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "launches.json"
    if content is not None:
        table.write_text(content)
    monkeypatch.setenv(OWN_TABLE, str(table))
    config = EngineConfig(listen="ipc:///nowhere", model=tmp_path, blobs="file:///nowhere")
    with pytest.raises(StartError, match=r"launches\.json"):
        choose_kernels(config, GPU, 1)


def test_the_shipped_table_is_as_it_would_be_written(tmp_path: Path):
    """One row a line, each once, all for any GPU: what a tuner finds is of its own machine."""
    rows = read_rows(SHIPPED)
    write_rows(tmp_path / "launches.json", rows)
    assert (tmp_path / "launches.json").read_text() == SHIPPED.read_text()
    assert len({row.key for row in rows}) == len(rows)
    assert {row.target for row in rows} == {"*"}
