"""The numbers: what NaN, infinity and zero do, and that norms are the norms of PEFT's own delta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tenora_adapters.base import BaseModel
from tenora_adapters.blobs import BlobError, FolderStore
from tenora_adapters.errors import BaseRejected, NumbersRejected
from tenora_adapters.manifest import WEIGHTS_FILE, blob_key
from tenora_adapters.numeric import check_numbers, decode_floats
from tenora_adapters.publish import publish, read_manifest
from tenora_adapters.validate import validate_package

A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def check(store: FolderStore, made: Any, base: BaseModel) -> dict[str, Any]:
    validated = validate_package(made.files, base)
    publish(store, validated)
    return check_numbers(store, read_manifest(store, validated.manifest.digest), base)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norms_are_those_of_the_delta(make_adapter: Any, base: BaseModel, store: FolderStore, dtype: Any) -> None:
    made = make_adapter(r=4, lora_alpha=6, target_modules="all-linear", rank_pattern={"down_proj": 2})
    made.write_tensors({name: tensor.to(dtype) for name, tensor in made.tensors().items()})
    report = check(store, made, base)
    tensors = made.tensors()
    assert report["accepted"] is True
    assert len(report["modules"]) == len(made.table)
    for module in report["modules"]:
        prefix = f"base_model.model.{module['module']}"
        b, a = (tensors[f"{prefix}.lora_{side}.weight"].double() for side in "BA")
        assert module["delta_norm"] == pytest.approx((module["scaling"] * b @ a).norm().item(), rel=1e-4)
        assert module["rank"] == a.shape[0]
        assert module["weights"] == [f"{prefix}.lora_{side}.weight" for side in "AB"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [A0, B0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_adp_04_one_bad_value_is_enough(
    make_adapter: Any, base: BaseModel, store: FolderStore, value: float, name: str, dtype: Any
) -> None:
    made = make_adapter(target_modules=["q_proj"])
    tensors = {key: tensor.to(dtype) for key, tensor in made.tensors().items()}
    tensors[name][1, 2] = value
    made.write_tensors(tensors)
    with pytest.raises(NumbersRejected) as refused:
        check(store, made, base)
    assert (refused.value.code, refused.value.param) == ("non_finite", name)


def test_adp_04_subnormal_values_are_fine(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    made = make_adapter(target_modules=["q_proj"])
    made.write_tensors({name: tensor * 0 + 1e-42 for name, tensor in made.tensors().items()})
    assert check(store, made, base)["accepted"] is True


def test_adp_04_finite_values_that_overflow_are_refused(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    made = make_adapter(target_modules=["q_proj"])
    made.write_tensors({name: tensor * 0 + 1e30 for name, tensor in made.tensors().items()})
    with pytest.raises(NumbersRejected) as refused:
        check(store, made, base)
    assert refused.value.code == "overflow"


@pytest.mark.parametrize("side", ["lora_A", "lora_B"])
def test_adp_01_all_zero_is_accepted_with_a_warning(
    make_adapter: Any, base: BaseModel, store: FolderStore, side: str
) -> None:
    made = make_adapter()
    made.write_tensors({name: t * 0 if side in name else t for name, t in made.tensors().items()})
    report = check(store, made, base)
    assert "no_effect" in {warning["code"] for warning in report["warnings"]}
    assert {module["delta_norm"] for module in report["modules"]} == {0.0}


def test_adp_01_one_live_module_is_an_effect(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    made = make_adapter()
    made.write_tensors({name: t if name in (A0, B0) else t * 0 for name, t in made.tensors().items()})
    assert "no_effect" not in {warning["code"] for warning in check(store, made, base)["warnings"]}


def test_adp_03_no_alpha_is_reported_once(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    made = make_adapter()
    made.write_config(lora_alpha=0)
    codes = [warning["code"] for warning in check(store, made, base)["warnings"]]
    assert codes.count("no_effect") == 1


def test_weights_that_rotted_are_noticed(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    validated = validate_package(make_adapter().files, base)
    publish(store, validated)
    path = store.root / blob_key(validated.manifest.digest, WEIGHTS_FILE)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(BlobError, match="digest"):
        check_numbers(store, validated.manifest, base)
    publish(store, validated)  # publishing again heals
    assert check_numbers(store, validated.manifest, base)["accepted"]


def test_one_digest_has_one_base(make_adapter: Any, base: BaseModel, store: FolderStore) -> None:
    import msgspec

    files = make_adapter().files
    publish(store, validate_package(files, base))
    other = msgspec.structs.replace(base, fingerprint="f" * 64)
    with pytest.raises(BaseRejected):
        publish(store, validate_package(files, other))
    assert read_manifest(store, validate_package(files, base).manifest.digest).base_fingerprint == base.fingerprint


def test_bf16_is_decoded_as_torch_does() -> None:
    values = torch.randn(1000, dtype=torch.bfloat16)
    data = values.view(torch.uint16).numpy().tobytes()
    np.testing.assert_array_equal(decode_floats(data, "BF16"), values.float().numpy())
