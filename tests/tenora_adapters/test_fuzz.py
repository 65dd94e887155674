"""UPL-01 to UPL-05: whatever bytes come, each reader either accepts or refuses in its own words, in bounded memory; and
what is accepted as safetensors the library reads too, with equal tensors."""

from __future__ import annotations

import io
import json
import random
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from mutations import mutated_archive, mutated_config, mutated_safetensors, safetensors_file
from peft import LoraConfig

from tenora_adapters.base import BaseModel
from tenora_adapters.errors import AdapterRejected, ConfigRejected, PackageRejected, WeightsRejected
from tenora_adapters.header import read_header
from tenora_adapters.limits import Limits
from tenora_adapters.numeric import decode_floats
from tenora_adapters.package import open_upload
from tenora_adapters.peft_config import parse_config
from tenora_adapters.replaced import resolve_replaced
from tenora_adapters.targets import resolve_targets

PEAK_BYTES = 8 << 20  # of Python's memory, for inputs of a few KiB
LIMITS = Limits(max_upload_bytes=1 << 20, max_unpacked_bytes=2 << 20)
Outcome = str  # "accepted", or the code of the refusal


def check_safetensors(dice: random.Random, _: Any) -> Outcome:
    data = mutated_safetensors(dice)
    try:
        header = read_header(io.BytesIO(data), len(data))
    except WeightsRejected as refused:
        return spoken(refused)
    tensors = safetensors.torch.load(data)
    assert tensors.keys() == {entry.name for entry in header.tensors}
    for entry in header.tensors:
        raw = data[header.data_start + entry.begin : header.data_start + entry.end]
        ours = torch.tensor(decode_floats(raw, entry.dtype)).reshape(entry.shape)
        assert torch.equal(ours.nan_to_num(0.5), tensors[entry.name].float().nan_to_num(0.5))
    return "accepted"


def check_config(dice: random.Random, base: BaseModel) -> Outcome:
    config = LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
        rank_pattern={"q_proj": 2},
        alpha_pattern={"layers.1": 3},
        layers_to_transform=[0, 1],
        layers_pattern="layers",
        modules_to_save=["norm"],
        bias="all",
    ).to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    text = mutated_config(json.loads(json.dumps(config, default=str)), dice)
    try:
        parsed = parse_config(text)
        targets = resolve_targets(parsed, base)
        resolve_replaced(parsed, base, {target.module for target in targets.modules})
    except ConfigRejected as refused:
        return spoken(refused)
    assert all(1 <= target.rank <= 256 for target in targets.modules)
    return "accepted"


def check_archive(dice: random.Random, folder: Path) -> Outcome:
    weights = safetensors_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8))
    files = {
        "adapter_config.json": b'{"peft_type": "LORA"}',
        "adapter_model.safetensors": weights,
        "README.md": b"# An adapter\n" * 20,
    }
    top = dice.choice(["", "adapter/", "a/b/"])
    upload, staging = folder / "upload", folder / "staging"
    upload.write_bytes(mutated_archive({top + name: data for name, data in files.items()}, dice))
    staging.mkdir(exist_ok=True)
    try:
        staged = open_upload(upload, "adapter.zip", staging, LIMITS)
    except PackageRejected as refused:
        return spoken(refused)
    finally:
        assert sorted(path.name for path in folder.iterdir()) == ["staging", "upload"]
        assert len(list(staging.iterdir())) in (0, 2)
    assert {path.name for path in staging.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    staged.config.unlink()
    staged.weights.unlink()
    return "accepted"


def spoken(refused: AdapterRejected) -> Outcome:
    assert 0 < len(refused.message) < 1000
    return refused.code


Check = Callable[[random.Random, Any], Outcome]


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    finally:
        tracemalloc.stop()


def run(check: Check, argument: Any, numbers: range, *, traced: bool) -> Counter[Outcome]:
    outcomes: Counter[Outcome] = Counter()
    for number in numbers:
        dice = random.Random(f"{check.__name__}/{number}")
        try:
            if traced:
                with bounded_memory():
                    outcomes[check(dice, argument)] += 1
            else:
                outcomes[check(dice, argument)] += 1
        except AdapterRejected as error:
            raise AssertionError(f"mutation {number} is refused by another reader's words: {error!r}") from error
        except Exception as error:
            raise AssertionError(f"mutation {number} is not handled") from error
    return outcomes


@pytest.mark.parametrize(("check", "count"), [(check_safetensors, 1000), (check_config, 500), (check_archive, 500)])
def test_mutations(check: Check, count: int, base: BaseModel, tmp_path: Path):
    """Both ends are met, or the mutations are too wild, or too tame."""
    argument = {check_config: base, check_archive: tmp_path}.get(check)
    outcomes = run(check, argument, range(count), traced=False)
    run(check, argument, range(count, count + 30), traced=True)
    assert outcomes["accepted"] > count / 20
    assert outcomes.total() - outcomes["accepted"] > count / 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("check", "count", "kinds"),
    [(check_safetensors, 50_000, 2), (check_config, 25_000, 3), (check_archive, 25_000, 3)],
)
def test_a_hundred_thousand_mutations(check: Check, count: int, kinds: int, base: BaseModel):
    """With at least so many kinds of outcome, being accepted among them: a broken header has one code for all that may
    be wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        argument = {check_config: base, check_archive: Path(folder)}.get(check)
        outcomes = run(check, argument, range(1_000_000, 1_000_000 + count), traced=True)
    assert outcomes["accepted"] > 0
    assert len(outcomes) >= kinds
