"""ADP-08: what an adapter brings whole, and PEFT's copies of the base's embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from families import tiny_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tenora_adapters.base import BaseModel, read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_adapters.errors import AdapterRejected, ConfigRejected, NumbersRejected, WeightsRejected
from tenora_adapters.limits import Limits
from tenora_adapters.manifest import Manifest
from tenora_adapters.numeric import check_numbers
from tenora_adapters.package import StagedFiles
from tenora_adapters.publish import publish
from tenora_adapters.validate import validate_package

HEAD_COPY = "base_model.model.lm_head.base_layer.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    return {family: tiny_model(root / family, family) for family in ("qwen2", "qwen2.5", "gemma3")}


class Made:
    """What PEFT saves of an adapter of one of the bases."""

    def __init__(self, model: Path, folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=dtype), config).save_pretrained(str(folder))
        self.base = read_base_model(model)
        self.files = StagedFiles(folder / "adapter_config.json", folder / "adapter_model.safetensors")

    def manifest(self) -> Manifest:
        return validate_package(self.files, self.base).manifest

    def check(self, store: FolderStore) -> dict[str, Any]:
        validated = validate_package(self.files, self.base)
        publish(store, validated)
        return check_numbers(store, validated.manifest, self.base)

    def change(self, name: str, tensor: Any) -> None:
        tensors = load_file(self.files.weights)
        tensors[name] = tensor(tensors[name]).contiguous()
        save_file(tensors, self.files.weights)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def replaced(manifest: Manifest) -> set[str]:
    return {item.parameter for item in manifest.replaced}


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_trained_biases(folders: Any, tmp_path: Path, store: FolderStore, bias: str) -> None:
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["q_proj", "up_proj"], bias=bias)
    wanted = ["q_proj"] if bias == "lora_only" else ["q_proj", "k_proj", "v_proj"]
    names = {f"model.layers.{layer}.self_attn.{name}.bias" for layer in range(3) for name in wanted}
    assert replaced(made.manifest()) == names
    report = made.check(store)
    assert {item["parameter"] for item in report["replaced"]} == names
    assert next(w["message"] for w in report["warnings"] if w["code"] == "replaces_base").startswith(str(len(names)))
    made.change("base_model.model.model.layers.1.self_attn.q_proj.base_layer.bias", lambda t: t * float("nan"))
    with pytest.raises(NumbersRejected, match="NaN"):
        made.check(store)


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_a_base_without_biases_has_none_to_train(make_adapter: Any, base: BaseModel, bias: str) -> None:
    manifest = validate_package(make_adapter(bias=bias).files, base).manifest
    assert not manifest.replaced
    assert manifest.schema == 1


def test_norms_head_and_embedding_trained_whole(folders: Any, tmp_path: Path) -> None:
    """Names are ends of paths, as in PEFT: `norm` is every norm whose name ends so."""
    saved = ["norm", "lm_head", "embed_tokens"]
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["q_proj"], modules_to_save=saved)
    norms = {f"model.layers.{i}.{name}_layernorm" for i in range(3) for name in ("input", "post_attention")}
    names = {*norms, "model.norm", "lm_head", "model.embed_tokens"}
    assert replaced(made.manifest()) == {f"{name}.weight" for name in names}


@pytest.mark.parametrize("name", ["norm", "q_proj", "mlp", "layers.0"])
def test_other_modules_trained_whole_are_refused_by_name(folders: Any, tmp_path: Path, name: str) -> None:
    """Of Gemma, `norm` is also the norms of single heads."""
    made = Made(folders["gemma3"], tmp_path / "a", target_modules=["o_proj"])
    config = json.loads(made.files.config.read_bytes()) | {"modules_to_save": [name]}
    made.files.config.write_text(json.dumps(config))
    with pytest.raises(ConfigRejected, match="modules_to_save choose") as refused:
        made.manifest()
    assert (refused.value.code, refused.value.param) == ("unsupported_feature", "modules_to_save")


def test_a_head_that_is_too_large(folders: Any, tmp_path: Path) -> None:
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["q_proj"], modules_to_save=["lm_head"])
    with pytest.raises(ConfigRejected, match="128 x 48 weights") as refused:
        validate_package(made.files, made.base, Limits(max_saved_elements=128 * 48 - 1))
    assert refused.value.code == "module_too_large"


def test_a_name_that_is_no_module_is_reported(folders: Any, tmp_path: Path) -> None:
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["q_proj"], modules_to_save=["classifier"])
    assert [w.code for w in made.manifest().warnings if "classifier" in w.message] == ["unmatched_target"]


@pytest.mark.parametrize("family", ["qwen2", "qwen2.5"])  # a tied head, and one of its own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pefts_copies_of_the_bases_weights(
    folders: Any, tmp_path: Path, store: FolderStore, family: str, dtype: torch.dtype
) -> None:
    """`save_embedding_layers`: taken where they are what the base has, whatever their dtype."""
    model = AutoModelForCausalLM.from_pretrained(folders[family], dtype=dtype)
    model.save_pretrained(tmp_path / "base")
    made = Made(tmp_path / "base", tmp_path / "a", target_modules=["embed_tokens", "lm_head"])
    manifest = made.manifest()
    assert {item.parameter for item in manifest.copies} == {"lm_head.weight", "model.embed_tokens.weight"}
    assert [module.module for module in manifest.modules] == ["model.embed_tokens", "lm_head"]
    assert made.check(store)["accepted"]
    made.change(HEAD_COPY, lambda tensor: tensor + (torch.arange(tensor.numel()).view_as(tensor) == 77) * 0.25)
    with pytest.raises(NumbersRejected, match="modules_to_save") as refused:
        made.check(store)
    assert (refused.value.code, refused.value.param) == ("changed_base_weights", HEAD_COPY)


def test_a_copy_with_more_tokens(folders: Any, tmp_path: Path) -> None:
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["lm_head"])
    made.change(HEAD_COPY, lambda tensor: torch.cat([tensor, tensor[:2]]))
    with pytest.raises(WeightsRejected, match="130 tokens") as refused:
        made.manifest()
    assert refused.value.code == "resized_vocabulary"


def test_a_base_that_was_registered_before_its_norms_were_noted(folders: Any, tmp_path: Path) -> None:
    made = Made(folders["qwen2"], tmp_path / "a", target_modules=["lm_head"], bias="all")
    made.base = msgspec.structs.replace(made.base, vectors={}, embeddings={}, revision=1)
    with pytest.raises(AdapterRejected, match="registered by an earlier version"):
        made.manifest()
    made = Made(folders["qwen2"], tmp_path / "b", target_modules=["lm_head"])
    made.base = msgspec.structs.replace(made.base, vectors={}, embeddings={}, revision=1)
    with pytest.raises(WeightsRejected, match="save_embedding_layers=False"):
        made.manifest()
