"""The tuner with a clock of the test's own. Run by test_interpreter.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import OutOfResources

from tenora_engine import tune as command
from tenora_engine.kernels import launch_table
from tenora_engine.kernels.launch_table import ANY, OWN_TABLE, SHIPPED, Row, find, merge, read_rows, write_rows
from tenora_engine.kernels.tune import Case, Sizes, cases, tune
from tenora_engine.model.spec import LayerSpec, ModelSpec

CPU, FP32 = torch.device("cpu"), torch.float32
SPEC = ModelSpec(
    vocab_size=60,
    hidden_size=16,
    intermediate_size=16,
    layers=(LayerSpec(None),),
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    context_length=64,
    rms_norm_eps=1e-5,
    attention_scale=0.2,
)
SIZES = Sizes(decode_rows=2, prefill_rows=40, num_adapters=1, context=20)


def quiet(line: str) -> None:
    pass


@pytest.fixture(autouse=True)
def fresh_table() -> Iterator[None]:
    yield
    launch_table._table.cache_clear()
    find.cache_clear()


def test_every_row_that_a_model_looks_up_is_tuned():
    """Each case runs, by the row that is tried, with one launch besides the present one."""
    tried: list[Mapping[str, int]] = []

    def clock(run: Callable[[], object]) -> float:
        tried.append(find(case.op, "sm_90", case.dtype, **case.shape))
        run()
        return 1.0 / len(tried)  # each is faster than all before it

    found = []
    for case in cases(SPEC, FP32, CPU, SIZES):
        other = next(launch for launch in reversed(case.candidates) if launch != find_now(case))
        tried.clear()
        found += tune([replace(case, candidates=[other])], "sm_90", clock, quiet)
        assert tried == [find_now(case), other]
        assert found[-1].launch == other
    named = {(row.op, row.dtype, tuple(sorted(row.shape.items()))) for row in found}
    shipped = {(row.op, row.dtype, tuple(sorted(row.shape.items()))) for row in read_rows(SHIPPED)}
    of_other_models = {key for key in shipped if key[0] == "attend" and dict(key[2])["head_dim"] != 64}
    assert named == {key for key in shipped if key[1] == "float32"} - of_other_models


def find_now(case: Case) -> Mapping[str, int]:
    return find(case.op, ANY, case.dtype, **case.shape)


def test_the_fastest_is_taken_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On its own GPU; others keep the shipped row. What does not fit is passed over."""
    times = {512: 3.0, 1024: 2.0, 2048: 1.0, 4096: 0.5}

    def clock(run: Callable[[], object]) -> float:
        block = find("gated", "sm_90", FP32)["block"]
        if block == 4096:
            raise OutOfResources(1, 0, "shared memory")
        return times[block]

    case = Case("gated", FP32, {}, [{"block": block, "num_warps": 4} for block in times], lambda: None)
    (row,) = tune([case], "sm_90", clock, quiet)
    assert (row.launch["block"], row.microseconds) == (2048, 1.0)
    assert find("gated", "sm_90", FP32)["block"] == 1024  # nothing stays behind
    table = tmp_path / "launches.json"
    older = Row("gated", "gfx942", "float32", {}, {"block": 512, "num_warps": 8}, 9.0)
    write_rows(table, merge([older, replace(row, microseconds=7.0)], [row]))
    assert read_rows(table) == [older, row]
    monkeypatch.setenv(OWN_TABLE, str(table))
    launch_table._table.cache_clear()
    find.cache_clear()
    assert [find("gated", target, FP32)["block"] for target in ("sm_90", "gfx942", "sm_80")] == [2048, 512, 1024]


def test_later_cases_run_on_what_was_found():
    seen = []

    def clock(run: Callable[[], object]) -> float:
        seen.append((find("gated", "sm_90", FP32)["block"], find("race", "sm_90", FP32)["block"]))
        return -float(sum(seen[-1]))

    gated, race = (Case(op, FP32, {}, [{"block": 4096, "num_warps": 4}], lambda: None) for op in ("gated", "race"))
    tune([gated, race], "sm_90", clock, quiet)
    assert seen == [(1024, 2048), (4096, 2048), (4096, 2048), (4096, 4096)]


def test_the_present_launch_must_work():
    def clock(run: Callable[[], object]) -> float:
        raise OutOfResources(1, 0, "shared memory")

    with pytest.raises(OutOfResources):
        tune([Case("race", FP32, {}, [], lambda: None)], "sm_90", clock, quiet)


def test_what_cannot_be_tuned_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Before anything is measured: no table named, no model there, a table that is none, no GPU."""
    config = tmp_path / "config.json"
    table = tmp_path / "launches.json"
    with pytest.raises(SystemExit):
        command.main(["--model", str(tmp_path)])
    assert OWN_TABLE in capsys.readouterr().err
    assert command.main(["--model", str(tmp_path), "--table", str(table)]) == 1
    assert "config.json" in capsys.readouterr().err
    config.write_text(LLAMA)
    table.write_text('{"op": 1}')
    assert command.main(["--model", str(tmp_path), "--table", str(table)]) == 1
    assert "cannot tune" in capsys.readouterr().err
    table.unlink()
    assert command.main(["--model", str(tmp_path), "--table", str(table)]) == 1
    assert "no GPU" in capsys.readouterr().err
    assert not table.exists()


LLAMA = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
"intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0}"""
