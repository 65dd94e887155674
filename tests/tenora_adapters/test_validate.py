"""Config and weights together: exactly the tensors that the config implies, in their shapes, or a refusal."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tenora_adapters.base import BaseModel
from tenora_adapters.errors import AdapterRejected, BaseRejected, ConfigRejected, WeightsRejected
from tenora_adapters.manifest import adapter_digest
from tenora_adapters.validate import validate_package

A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def renamed(tensors: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def test_a_plain_adapter_gives_its_manifest(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(r=4)
    manifest = validate_package(made.files, base).manifest
    weights, config = made.files.weights.read_bytes(), made.files.config.read_bytes()
    assert manifest.weights_sha256 == hashlib.sha256(weights).hexdigest()
    assert manifest.config_sha256 == hashlib.sha256(config).hexdigest()
    assert manifest.digest == adapter_digest(manifest.config_sha256, manifest.weights_sha256)
    assert manifest.base_fingerprint == base.fingerprint
    assert manifest.weights_bytes == len(weights)
    assert (manifest.max_rank, len(manifest.modules), len(manifest.tensors)) == (4, 4, 8)
    assert {name for m in manifest.modules for name in (m.lora_a, m.lora_b)} == {t.name for t in manifest.tensors}


def test_adp_01_renamed_keys_are_refused_with_both_lists(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(target_modules=["q_proj"])
    made.write_tensors(renamed(made.tensors(), "model.model.layers", "model.language_model.layers"))
    with pytest.raises(WeightsRejected) as refused:
        validate_package(made.files, base)
    assert "base_model.model.language_model.layers.0" in refused.value.message
    assert A0 in refused.value.message
    assert refused.value.code == "unexpected_tensors"


def test_adp_01_modules_outside_the_base_are_refused(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(target_modules=["q_proj"])
    made.write_tensors(renamed(made.tensors(), "q_proj", "c_attn"))
    made.write_config(target_modules=["c_attn"])
    with pytest.raises(ConfigRejected, match="q_proj") as refused:
        validate_package(made.files, base)
    assert refused.value.code == "no_modules"


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        (lambda t: t.pop(A0), A0, r"lora_A\.weight \[4, 32\]"),
        (lambda t: t.pop(B0), B0, r"lora_B\.weight \[32, 4\]"),
        (lambda t: t.update({"foo.weight": torch.zeros(2)}), "foo.weight", "foo.weight"),
        (lambda t: t.update({A0: t[A0].T}), A0, r"expected the shape \[4, 32\], found \[32, 4\]"),
        (lambda t: t.update({A0: torch.zeros(4, 33)}), A0, r"expected the shape \[4, 32\], found \[4, 33\]"),
        (lambda t: t.update({B0: torch.zeros(33, 4)}), B0, r"expected the shape \[32, 4\], found \[33, 4\]"),
        (lambda t: t.update({A0: torch.zeros(4, 0)}), A0, r"found \[4, 0\]"),
        (lambda t: t.update({A0: torch.zeros(128)}), A0, r"found \[128\]"),
    ],
    ids=["no A", "no B", "extra", "transposed", "in+1", "out+1", "zero-size", "flat"],
)
def test_adp_02_tensors_that_do_not_fit(
    make_adapter: Any, base: BaseModel, change: Any, param: str, message: str
) -> None:
    made = make_adapter(r=4)
    tensors = made.tensors()
    change(tensors)
    made.write_tensors(tensors)
    with pytest.raises(WeightsRejected, match=message) as refused:
        validate_package(made.files, base)
    assert refused.value.param == param
    assert refused.value.stage == "validate"


def test_adp_02_rank_of_config_against_rank_of_tensors(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(r=4)
    made.write_config(r=8)
    with pytest.raises(WeightsRejected, match=r"expected the shape \[8, 32\], found \[4, 32\]"):
        validate_package(made.files, base)


def test_adp_08_dora(make_adapter: Any, base: BaseModel) -> None:
    """The lengths of the rows belong to it: they must be there with the flag, and not without."""
    made = make_adapter(use_dora=True)
    manifest = validate_package(made.files, base).manifest
    assert manifest.dora
    assert manifest.modules[0].dora_magnitude == manifest.modules[0].lora_a.replace(
        "lora_A.weight", "lora_magnitude_vector"
    )
    made.write_config(use_dora=False)
    with pytest.raises(WeightsRejected, match="lora_magnitude_vector"):
        validate_package(made.files, base)
    plain = make_adapter()
    plain.write_config(use_dora=True)
    with pytest.raises(WeightsRejected, match=r"lacks .*lora_magnitude_vector"):
        validate_package(plain.files, base)


@pytest.mark.parametrize(
    "settings",
    [{"lora_bias": True}, {"modules_to_save": ["norm"]}],
    ids=str,
)
def test_adp_08_tensors_of_features_that_the_config_hides(
    make_adapter: Any, base: BaseModel, settings: dict[str, Any]
) -> None:
    """The file decides with the config: switching the flag off does not make the tensors go away."""
    made = make_adapter(**settings)
    if "lora_bias" in settings:
        with pytest.raises(AdapterRejected) as by_config:
            validate_package(made.files, base)
        assert by_config.value.code == "unsupported_feature"
    made.write_config(**dict.fromkeys(settings))
    with pytest.raises(WeightsRejected) as by_tensors:
        validate_package(made.files, base)
    assert by_tensors.value.code == "unexpected_tensors"


def test_adp_10_config_and_tensors_that_disagree(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(target_modules=["q_proj", "v_proj"])
    made.write_config(target_modules=["q_proj"])
    with pytest.raises(WeightsRejected, match="v_proj"):
        validate_package(made.files, base)


def test_adp_13_another_base_is_refused_where_the_operator_lists_names(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter()
    accepted = {"HuggingFaceTB/SmolLM2-135M-Instruct"}
    for name in ("someone/other-model", None, "", "/home/x", "https://example.org/model"):
        made.write_config(base_model_name_or_path=name)
        with pytest.raises(BaseRejected) as refused:
            validate_package(made.files, base, accepted_bases=accepted, base_confirmed=bool(name))
        assert refused.value.param == "base_model_name_or_path"
        assert refused.value.code == ("base_mismatch" if name else "base_unconfirmed")
        assert (repr(name) if name else "no base model") in refused.value.message
        assert "'HuggingFaceTB/SmolLM2-135M-Instruct'" in refused.value.message
    made.write_config(base_model_name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct", revision="other")
    assert not validate_package(made.files, base, accepted_bases=accepted).manifest.warnings


@pytest.mark.parametrize("name", [None, ""])
def test_adp_13_no_name_needs_the_uploaders_word(make_adapter: Any, base: BaseModel, name: str | None) -> None:
    made = make_adapter()
    made.write_config(base_model_name_or_path=name)
    (warning,) = validate_package(made.files, base, accepted_bases={"x"}, base_confirmed=True).manifest.warnings
    assert warning.code == "base_confirmed"


def test_adp_13_without_a_list_the_name_is_reported(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter()
    made.write_config(base_model_name_or_path="someone/other-model")
    (warning,) = validate_package(made.files, base).manifest.warnings
    assert warning.code == "base_unverified"
    assert "someone/other-model" in warning.message


def test_adp_13_the_name_is_never_opened(make_adapter: Any, base: BaseModel, tmp_path: Path) -> None:
    """An audit hook sees every open and every socket of this process; hooks stay, so ours falls silent afterwards."""
    canary = tmp_path / "canary"
    canary.mkdir()
    made = make_adapter()
    made.write_config(base_model_name_or_path=str(canary), auto_mapping={"parent_library": "antigravity"})
    seen: list[str] = []
    listening = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event.split(".")[0] in {"open", "socket", "import", "os", "subprocess"}:
            seen.append(f"{event} {arguments[:1]}")

    sys.addaudithook(hook)
    try:
        validate_package(made.files, base)
    finally:
        listening = False
    assert any("adapter_config.json" in entry for entry in seen)
    assert not [entry for entry in seen if "canary" in entry or "socket" in entry or "antigravity" in entry]


def test_activated_lora_is_named_in_the_report(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(target_modules=["q_proj"], alora_invocation_tokens=[5, 95])
    manifest = validate_package(made.files, base).manifest
    assert manifest.alora_invocation == (5, 95)
    assert next(w.message for w in manifest.warnings if w.code == "activated").count("5, 95") == 1
    made.write_config(alora_invocation_tokens=[5, 96])
    with pytest.raises(ConfigRejected, match="token id 96") as refused:
        validate_package(made.files, base)
    assert refused.value.param == "alora_invocation_tokens"


def test_an_activated_adapter_of_the_embedding_is_refused(make_adapter: Any, base: BaseModel) -> None:
    made = make_adapter(target_modules=["embed_tokens", "q_proj"])
    validate_package(made.files, base)
    made.write_config(alora_invocation_tokens=[5])
    with pytest.raises(ConfigRejected, match="PEFT makes no such") as refused:
        validate_package(made.files, base)
    assert (refused.value.param, refused.value.code) == ("target_modules", "unsupported_feature")
