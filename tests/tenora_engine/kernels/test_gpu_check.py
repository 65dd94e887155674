"""The script that a machine with a GPU runs, where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# On a machine with torch, triton, safetensors and numpy alone.
_PROGRAM = """
import sys
from dataclasses import replace

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {bench!r})
import gpu_check
import torch
from gpu import checks, llama, timings

inputs = checks.Inputs(torch.device("cpu"), torch.float32)
assert checks.norm(inputs).error < 1e-5
ours = checks.TRITON.add_rms_norm
checks.TRITON = replace(checks.TRITON, add_rms_norm=lambda x, r, w, eps: ours(x, r, w * 1.01, eps))
assert checks.norm(inputs).error > 1e-3

rates = [llama.Rate("base", 0, True, 1.0, 100.0), llama.Rate("rank 16", 32, True, 1.0, 94.0)]
timed = [
    timings.Timing("decode attention", "16 x 32768 tokens, bfloat16", 100.0, 1.0, 0.85),
    timings.Timing("decode attention", "16 x 32768 tokens, float8_e4m3fn", 54.0, 1.0, 0.7),
]
assert [target.met for target in gpu_check.targets(timed, rates)] == [False, True, True]
"""
_BLOCKED = {"zmq", "msgspec", "xgrammar", "tokenizers", "re2", "rich", "sqlalchemy", "psycopg", "tenora_adapters"}


def test_it_tells_what_is_wrong_and_needs_no_more_than_torch_and_triton(repository: Path):
    """A kernel that is one percent off, and a figure that misses its target; the adapters' and the models' code too
    imports nothing else."""
    program = _PROGRAM.format(blocked=_BLOCKED | {"transformers", "peft"}, bench=str(repository / "bench"))
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_runs(repository: Path, tmp_path: Path):
    """In the interpreter, on tiny sizes: every kernel is right, and every part has its figures."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(repository / "bench/gpu_check.py"), "--json", str(figures)]
    subprocess.run(command, check=True)
    found = json.loads(figures.read_text())
    assert found["machine"]["interpreted"]
    assert all(check["ok"] for check in found["checks"])
    kernels = {timing["kernel"] for timing in found["timings"]}
    assert kernels >= {"decode attention", "add_rms_norm", "gated", "place_heads", "race"}
    assert all(timing["microseconds"] > 0 for timing in found["timings"])
    assert {rate["what"] for rate in found["model"]} == {"base", "rank 16", "ranks 8 to 64", "merged, in turn"}
    assert found["targets"] == []  # of an interpreter nothing is expected
