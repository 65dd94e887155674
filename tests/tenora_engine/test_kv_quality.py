"""What a quantised KV cache costs in quality: the figures of bench/kv_quality.py, and the gates that they must pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARD = "K bias everywhere"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_quality_of_a_quantised_cache(repository: Path, model_folder: Path, tmp_path: Path):
    """ENG-03: e4m3 with a scale for each token and head stays within 0.5 % of the plain cache's perplexity, with a K
    bias like Qwen2.5's too. With one in every layer that holds no more, and the offset saves most of what is lost."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(repository / "bench" / "kv_quality.py"), "--model", str(model_folder)]
    subprocess.run([*command, "--tokens", "700", "--json", str(figures)], check=True)
    found = json.loads(figures.read_text())
    loss, greedy, gap = (
        {(q["model"], q["cache"]): q[figure] for q in found}
        for figure in ("loss_percent", "greedy_percent", "decode_gap")
    )
    for cache in ("fp8", "int8"):
        for model in ("plain", "K bias as Qwen2.5"):
            assert abs(loss[model, cache]) < 0.5
            assert greedy[model, cache] > 93
        assert loss[HARD, cache] < 2.5
        assert loss[HARD, f"{cache}, no offset"] > 4 * max(loss[HARD, cache], 0.5)  # the control: there is much to save
    assert gap["plain", "plain"] < 1e-3
    assert max(gap[model, cache] for model, cache in gap if cache in ("fp8", "int8")) < 0.5
