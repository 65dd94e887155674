"""adapter_config.json: read exactly as PEFT does, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenora_adapters.base import BaseModel
from tenora_adapters.errors import ConfigRejected
from tenora_adapters.peft_config import parse_config
from tenora_adapters.targets import Target, resolve_targets
from tenora_adapters.validate import validate_package

BASIC: dict[str, Any] = {"peft_type": "LORA", "target_modules": ["q_proj"]}


def parse(**fields: Any) -> Any:
    return parse_config(json.dumps(BASIC | fields).encode())


@pytest.mark.parametrize("rank", [0, -8, True, 8.0, "8", 10**9, None, [8], 257])
def test_adp_02_bad_rank(rank: object) -> None:
    for fields in ({"r": rank}, {"rank_pattern": {"q_proj": rank}}):
        with pytest.raises(ConfigRejected) as refused:
            parse(**fields)
        assert refused.value.stage == "validate"
        assert (refused.value.param or "").startswith(next(iter(fields)))


@pytest.mark.parametrize("alpha", [16, 16.5, 0, -4, 1, 1e-3])
def test_adp_03_alpha_is_used_as_it_stands(make_adapter: Any, base: BaseModel, alpha: float) -> None:
    made = make_adapter(r=4)
    made.write_config(lora_alpha=alpha)
    manifest = validate_package(made.files, base).manifest
    assert {module.scaling for module in manifest.modules} == {alpha / 4}
    assert ("no_effect" in {warning.code for warning in manifest.warnings}) is (alpha == 0)


def test_adp_03_absent_alpha_and_rank_are_pefts_defaults() -> None:
    config = parse()
    assert (config.rank, config.alpha, config.scaling(8, 8)) == (8, 8, 1.0)


@pytest.mark.parametrize("alpha", ["16", None, True, [16], 1e38, -1e38, 10**400])
def test_adp_03_no_number_and_no_sensible_size(alpha: object) -> None:
    for fields in ({"lora_alpha": alpha}, {"alpha_pattern": {"q_proj": alpha}}):
        with pytest.raises(ConfigRejected):
            parse(**fields)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_adp_03_what_json_has_no_word_for(text: str) -> None:
    with pytest.raises(ConfigRejected):
        parse_config(f'{{"peft_type": "LORA", "target_modules": ["q_proj"], "lora_alpha": {text}}}'.encode())


def test_adp_03_scaling_is_capped(base: BaseModel) -> None:
    with pytest.raises(ConfigRejected) as refused:
        resolve_targets(parse(lora_alpha=1e9, r=1), base)
    assert refused.value.code == "scaling_out_of_range"
    assert resolve_targets(parse(lora_alpha=1e4, r=1), base).modules[0] == Target(
        "model.layers.0.self_attn.q_proj", 1, 1e4
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bias", "some"),
        ("bias", ["all"]),
        ("lora_bias", True),
        ("modules_to_save", ["lm_.*"]),
        ("modules_to_save", {"lm_head": 1}),
        ("trainable_token_indices", [1, 2]),
        ("alora_invocation_tokens", []),
        ("alora_invocation_tokens", "<go>"),
        ("alora_invocation_tokens", [1, -1]),
        ("alora_invocation_tokens", [True]),
        ("alora_invocation_tokens", [1] * 65),
        ("layer_replication", [[0, 2]]),
        ("target_parameters", ["experts.weight"]),
        ("megatron_config", {"a": 1}),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("kasa_config", {"x": 1}),
        ("ensure_weight_tying", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", 1),
        ("peft_type", "ADALORA"),
        ("peft_type", None),
        ("task_type", "SEQ_CLS"),
        ("a_feature_of_next_year", 3),
    ],
)
def test_adp_08_what_is_not_implemented_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigRejected) as refused:
        parse(**{field: value})
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("field", "value"), [("use_dora", True), ("bias", "all"), ("bias", "lora_only"), ("modules_to_save", ["norm"])]
)
def test_what_cannot_be_activated_is_refused_by_name(field: str, value: object) -> None:
    """Each is served for itself, and activated LoRA with all that only says how B A is scaled."""
    parse(**{field: value})
    with pytest.raises(ConfigRejected) as refused:
        parse(alora_invocation_tokens=[7, 8], **{field: value})
    assert (refused.value.param, refused.value.code) == (field, "unsupported_feature")
    assert parse(alora_invocation_tokens=[7, 8], use_rslora=True, rank_pattern={"q_proj": 2}).invocation == (7, 8)


def test_every_field_that_peft_writes_is_known(make_adapter: Any) -> None:
    """A plain adapter of the installed PEFT is accepted with all its fields, and none is `unknown` by luck."""
    config = make_adapter().config
    assert parse_config(json.dumps(config).encode()).rank == 8
    assert parse(eva_config={"rho": 2.0}, lora_dropout=0.1, init_lora_weights="gaussian", some_switch=False).rank == 8


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"peft_type": "LORA", "target_modules": ["q_proj"], "r": 4, "r": 8}',
        b'{"peft_type": "LORA", "target_modules": ["q_proj"], "rank_pattern": {"a": 1, "a": 2}}',
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"peft_type": "LORA", "target_modules": ["q_proj"], "r": ' + b"9" * 5000 + b"}",
        b" " * (1 << 20),
    ],
    ids=range(10),
)
def test_malformed_texts(text: bytes) -> None:
    with pytest.raises(ConfigRejected):
        parse_config(text)
