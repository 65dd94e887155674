"""The adapters that ship in `examples/`, on the model they are for: the whole way from folder to report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenora_adapters.base import BaseModel, read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_adapters.numeric import check_numbers
from tenora_adapters.package import open_upload
from tenora_adapters.publish import publish, read_manifest
from tenora_adapters.validate import validate_package

BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def smollm2(model_folder: Path) -> BaseModel:
    return read_base_model(model_folder)


@pytest.mark.parametrize(
    ("name", "rank", "num_modules"),
    [("pirate", 8, 60), ("json", 4, 120), ("pirate-dora", 4, 45), ("json-rslora", 8, 45), ("pirate-head", 4, 31)],
)
def test_demo_adapters_are_accepted(
    repository: Path, tmp_path: Path, smollm2: BaseModel, name: str, rank: int, num_modules: int
) -> None:
    store = FolderStore(tmp_path / "blobs")
    staging = tmp_path / "staging"
    staging.mkdir()
    files = open_upload(repository / "examples" / "adapters" / name, name, staging)
    validated = validate_package(files, smollm2, accepted_bases={BASE_NAME})
    publish(store, validated)
    manifest = read_manifest(store, validated.manifest.digest)
    assert manifest == validated.manifest
    assert (manifest.max_rank, len(manifest.modules)) == (rank, num_modules)
    assert {tensor.dtype for tensor in manifest.tensors} == {"BF16"}
    assert 0.2e6 < manifest.weights_bytes < 1.5e6
    assert (manifest.dora, manifest.rslora) == (name == "pirate-dora", name == "json-rslora")
    assert (manifest.modules[-1].module == "lm_head") == (name == "pirate-head")
    report = check_numbers(store, manifest, smollm2)
    assert report["warnings"] == []
    assert min(module["delta_norm"] for module in report["modules"]) > 0
    json.dumps(report)


def test_demo_adapters_name_no_machine(repository: Path) -> None:
    for config in (repository / "examples" / "adapters").glob("*/adapter_config.json"):
        assert json.loads(config.read_bytes())["base_model_name_or_path"] == BASE_NAME
