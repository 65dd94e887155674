"""What adapters are checked against, for a base of each family: identity, context and linear layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import ALL_LINEAR, random_adapter
from families import FAMILIES, tiny_model
from published_configs import PUBLISHED

from tenora_adapters.base import BaseModel, BaseModelError, read_base_model, weight_files
from tenora_adapters.errors import ConfigRejected, WeightsRejected
from tenora_adapters.package import StagedFiles
from tenora_adapters.peft_config import parse_config
from tenora_adapters.targets import resolve_targets
from tenora_adapters.validate import validate_package
from tenora_engine.model.hf_config import parse_spec, read_spec


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {family: tiny_model(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def bases(folders: dict[str, Path]) -> dict[str, BaseModel]:
    return {family: read_base_model(folder) for family, folder in folders.items()}


def with_config(folder: Path, copy: Path, **config: Any) -> Path:
    """A copy of a model's folder whose config.json holds other values; None: lacks them."""
    shutil.copytree(folder, copy)
    found = json.loads((copy / "config.json").read_bytes()) | config
    (copy / "config.json").write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return copy


@pytest.mark.parametrize("family", FAMILIES)
def test_linear_layers_as_the_engine_multiplies_them(folders: Any, bases: Any, family: str):
    spec, base = read_spec(folders[family]), bases[family]
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes = {
        "self_attn.q_proj": (spec.q_size, hidden),
        "self_attn.k_proj": (spec.kv_size, hidden),
        "self_attn.v_proj": (spec.kv_size, hidden),
        "self_attn.o_proj": (hidden, spec.q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    expected = {
        f"model.layers.{layer}.{name}": shape for layer in range(spec.num_layers) for name, shape in shapes.items()
    }
    expected["lm_head"] = (spec.vocab_size, hidden)
    assert {name: (shape.out_features, shape.in_features) for name, shape in base.linears.items()} == expected
    assert (base.num_layers, base.vocab_size, base.context_length) == (spec.num_layers, 128, spec.context_length)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_fits_its_own_family_and_no_other_shape(folders: Any, bases: Any, family: str, tmp_path: Path):
    adapter = random_adapter(folders[family], tmp_path / "adapter", rank=3, seed=0, targets=(*ALL_LINEAR, "lm_head"))
    files = StagedFiles(adapter / "adapter_config.json", adapter / "adapter_model.safetensors")
    for other, base in bases.items():
        if base.linears == bases[family].linears:
            assert len(validate_package(files, base).manifest.modules) == 7 * 3 + 1
        else:
            with pytest.raises(WeightsRejected, match="expected the shape"):
                validate_package(files, base)
        assert (base.fingerprint == bases[family].fingerprint) == (other == family)


@pytest.mark.parametrize("module", ["q_norm", "post_feedforward_layernorm", "norm"])
def test_norms_are_no_linear_layers(bases: Any, module: str):
    config = parse_config(json.dumps({"peft_type": "LORA", "target_modules": [module]}).encode())
    with pytest.raises(ConfigRejected, match="no module"):
        resolve_targets(config, bases["gemma3"])


@pytest.mark.parametrize("family", ["smollm3", "gemma3"])
def test_a_family_that_is_tied_unless_it_says_otherwise(folders: Any, tmp_path: Path, family: str):
    assert "lm_head" in read_base_model(with_config(folders[family], tmp_path / "m", tie_word_embeddings=None)).linears
    untied = with_config(folders[family], tmp_path / "untied", tie_word_embeddings=False)
    assert "lm_head" not in read_base_model(untied).linears


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("gemma3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("gemma3", {"query_pre_attn_scalar": 24}),
        ("gemma3", {"hidden_activation": "gelu"}),
        ("gemma3", {"sliding_window_pattern": 2}),
        ("gemma3", {"rope_local_base_freq": 5000.0}),
        ("smollm3", {"no_rope_layers": [1, 1, 0]}),
        ("smollm3", {"use_sliding_window": False}),
        ("qwen2.5", {"max_window_layers": 2}),
    ],
    ids=str,
)
def test_all_that_changes_the_computation_is_in_the_fingerprint(
    folders: Any, bases: Any, tmp_path: Path, family: str, change: dict[str, Any]
):
    """And a base is known by the fingerprint of before this was so, which is the same with the change."""
    base, other = bases[family], read_base_model(with_config(folders[family], tmp_path / "m", **change))
    assert base.fingerprint != other.fingerprint
    assert base.former_fingerprint == other.former_fingerprint
    assert base.is_known_as(other.former_fingerprint)
    assert not base.is_known_as(other.fingerprint)


def test_a_base_with_nothing_new_keeps_its_fingerprint(bases: Any):
    assert bases["llama"].former_fingerprint is None
    assert not bases["llama"].is_known_as("f" * 64)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_context_is_the_engines(folders: Any, tmp_path: Path, name: str):
    shutil.copytree(folders["smollm2"], tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(json.dumps(PUBLISHED[name]))
    assert read_base_model(tmp_path / "m").context_length == parse_spec(PUBLISHED[name], {}).context_length


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": None},
        {"num_hidden_layers": None},
        {"max_position_embeddings": "many"},
        {"rope_parameters": "yarn"},
        {"rope_scaling": {"type": "yarn", "factor": []}},
    ],
)
def test_a_config_that_cannot_be_is_refused_in_words(folders: Any, tmp_path: Path, change: dict[str, Any]):
    with pytest.raises(BaseModelError, match=r"config\.json"):
        read_base_model(with_config(folders["smollm2"], tmp_path / "m", **change))


def test_the_files_of_a_checkpoint_and_no_others(tmp_path: Path):
    """Mistral's folders also hold consolidated.safetensors: the same weights under other names."""

    def names() -> list[str]:
        return [file.name for file in weight_files(tmp_path)]

    with pytest.raises(BaseModelError, match="no"):
        names()
    for name in ("b.safetensors", "a.safetensors"):
        (tmp_path / name).touch()
    assert names() == ["a.safetensors", "b.safetensors"]
    (tmp_path / "model.safetensors").touch()
    assert names() == ["model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"x": "m-2.safetensors", "y": "../m-1.safetensors", "z": "m-2.safetensors"}}')
    assert weight_files(tmp_path) == [tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors"]
    index.write_text("[]")
    with pytest.raises(BaseModelError, match="cannot read"):
        names()
