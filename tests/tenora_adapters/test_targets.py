"""Modules, ranks and scalings against PEFT's own, on the same base."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_adapters.base import BaseModel, LinearShape
from tenora_adapters.errors import ConfigRejected
from tenora_adapters.limits import Limits
from tenora_adapters.patterns import PatternBudget, compile_pattern
from tenora_adapters.peft_config import parse_config
from tenora_adapters.targets import Target, Targets, resolve_targets
from tenora_adapters.validate import validate_package


def resolve(base: BaseModel, **fields: Any) -> Targets:
    text = json.dumps({"peft_type": "LORA", "target_modules": ["q_proj", "v_proj"], **fields})
    return resolve_targets(parse_config(text.encode()), base)


def names(targets: Targets) -> set[str]:
    return {target.module for target in targets.modules}


PATTERNS = {
    "r": 25,
    "lora_alpha": 17,
    "target_modules": ["q_proj", "k_proj", "o_proj", "down_proj"],
    "rank_pattern": {"o_proj": 9, "down_proj": 16},
    "alpha_pattern": {"q_proj": 11, "down_proj": 13},
}


@pytest.mark.parametrize(
    ("rslora", "scaling"),
    [
        (False, {"q_proj": 11 / 25, "k_proj": 17 / 25, "o_proj": 17 / 9, "down_proj": 13 / 16}),
        (True, {"q_proj": 11 / 5, "k_proj": 17 / 5, "o_proj": 17 / 3, "down_proj": 13 / 4}),
    ],
)
def test_adp_06_patterns_and_rslora(
    make_adapter: Any, base: BaseModel, rslora: bool, scaling: dict[str, float]
) -> None:
    made = make_adapter(**PATTERNS, use_rslora=rslora)
    validated = validate_package(made.files, base)
    found = {Target(m.module, m.rank, m.scaling) for m in validated.manifest.modules}
    assert found == made.table
    assert {m.module.rpartition(".")[2]: m.scaling for m in validated.manifest.modules} == scaling
    assert validated.manifest.rslora is rslora


@pytest.mark.parametrize(
    "rank_pattern",
    [
        {"^model.layers.1.self_attn.q_proj": 3},
        {"^q_proj": 3},
        {"proj": 3},
        {"_proj": 3, "q_proj": 5},
        {"q_proj": 3, r"layers\.0\.self_attn\.q_proj": 5},
        {r"layers\.0\.self_attn\.q_proj": 5, "q_proj": 3},
        {r"(q|v)_proj": 2},
        {r"self_attn\.[a-q]_proj": 2, r".*": 7},
        {r"layers\.\d+\.self_attn\.v_proj": 6},
    ],
)
def test_adp_06_match_rule_and_order_of_patterns(make_adapter: Any, base: BaseModel, rank_pattern: Any) -> None:
    """`foo` does not match `barfoo`; of several keys that match, the first in the text counts."""
    made = make_adapter(rank_pattern=rank_pattern, alpha_pattern=rank_pattern, lora_alpha=2)
    assert set(resolve(base, **made.config).modules) == made.table


def test_adp_06_unknown_keys_are_reported(base: BaseModel) -> None:
    found = resolve(base, rank_pattern={"nothing": 4}, alpha_pattern={"roj": 3})
    assert [warning.code for warning in found.warnings] == ["unmatched_pattern", "unmatched_pattern"]
    assert "nothing" in found.warnings[0].message


def test_adp_07_order_survives_the_way_through_bytes(make_adapter: Any, base: BaseModel) -> None:
    """The stored config is the uploaded text; sorting its keys, as a JSON column may, would change the answer."""
    pattern = {r"layers.0.self_attn.q_proj": 16, "q_proj": 4}
    made = make_adapter(alpha_pattern=pattern)
    config = validate_package(made.files, base).config_bytes
    assert config == made.files.config.read_bytes()
    first = resolve_targets(parse_config(config), base)
    assert set(first.modules) == made.table
    assert {t.module: t.scaling for t in first.modules}["model.layers.0.self_attn.q_proj"] == 2.0
    by_length = dict(sorted(pattern.items(), key=lambda item: len(item[0])))
    assert resolve(base, **{**made.config, "alpha_pattern": by_length}).modules != first.modules


SELECTIONS: list[dict[str, Any]] = [
    {"target_modules": r".*(q_proj|v_proj)$"},
    {"target_modules": r".*\.1\..*_proj"},
    {"target_modules": r"model\.layers\.\d+\.mlp\.(up|down)_proj"},
    {"target_modules": "all-linear"},
    {"target_modules": "ALL-linear", "exclude_modules": ["down_proj"]},
    {"target_modules": ["q_proj"]},
    {"target_modules": ["lm_head", "v_proj"]},
    {"target_modules": ["embed_tokens", "v_proj"]},
    {"target_modules": ["model.embed_tokens"], "rank_pattern": {"embed_tokens": 3}, "use_rslora": True},
    {"target_modules": r"model\.embed_tokens|.*\.q_proj"},
    {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["self_attn.q_proj", "model.layers.1.mlp.up_proj"]},
    {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    {"target_modules": ["q_proj", "k_proj"], "exclude_modules": r".*\.1\.self_attn\.k_proj"},
    {"target_modules": ["q_proj"], "layers_to_transform": [1]},
    {"target_modules": ["q_proj"], "layers_to_transform": 1},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 99]},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
    {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "layers"},
    {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["blocks", "l[a-z]+s"]},
    {"target_modules": ["v_proj", "model.layers.0.self_attn.q_proj"], "layers_to_transform": [1]},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_adp_10_module_set_equals_pefts(make_adapter: Any, base: BaseModel, selection: dict[str, Any]) -> None:
    made = make_adapter(**selection)
    validated = validate_package(made.files, base)
    assert {Target(m.module, m.rank, m.scaling) for m in validated.manifest.modules} == made.table


def test_adp_10_all_linear_leaves_the_head_out(base: BaseModel) -> None:
    assert "lm_head" in base.linears
    assert names(resolve(base, target_modules="all-linear")) == base.linears.keys() - {"lm_head"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": None}, "target_modules"),
        ({"target_modules": ""}, "target_modules"),
        ({"target_modules": {"q_proj": 1}}, "target_modules"),
        ({"target_modules": [1]}, "target_modules"),
        ({"target_modules": ["nothing"]}, "target_modules"),
        ({"target_modules": "q_proj"}, "target_modules"),  # an expression must match the whole path
        ({"target_modules": ".*", "layers_to_transform": [1]}, "layers_to_transform"),
        ({"target_modules": "all-linear", "layers_pattern": "layers"}, "layers_to_transform"),
        ({"layers_pattern": "layers"}, "layers_pattern"),
        ({"layers_to_transform": [True]}, "layers_to_transform"),
        ({"layers_to_transform": ["1"]}, "layers_to_transform"),
        ({"layers_to_transform": [5]}, "target_modules"),
    ],
    ids=str,
)
def test_adp_10_what_chooses_nothing_or_contradicts_itself_is_refused(
    base: BaseModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ConfigRejected) as refused:
        resolve(base, **fields)
    assert refused.value.param == param


def test_adp_10_a_number_at_the_top_is_no_layer() -> None:
    linears = dict.fromkeys(("foo.bar.10.baz.q_proj", "10.baz.q_proj", "foo.10.q_proj"), LinearShape(4, 4))
    base = BaseModel("0" * 64, {}, 8, 8, 1, linears)
    assert names(resolve(base, target_modules=["q_proj"], layers_to_transform=[10])) == {"foo.bar.10.baz.q_proj"}


REDOS = r"(([a-z_0-9.]+)+)!"


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": REDOS},
        {"exclude_modules": REDOS},
        {"rank_pattern": {REDOS: 4}},
        {"alpha_pattern": {REDOS: 4}},
        {"layers_to_transform": [0], "layers_pattern": REDOS},
        {"rank_pattern": {f"q{i}": 4 for i in range(10_000)}},
        {"target_modules": [f"q{i}" for i in range(10_000)]},
        {"target_modules": "a" * 2**17},
        {"rank_pattern": {"a" * 2**17: 4}},
        {"rank_pattern": {f"(a{{1,200}}){{1,5}}{i}": 4 for i in range(200)}},
        {"rank_pattern": {"(" * 500: 4}},
        {"rank_pattern": {f".*.*.*.*.*[a-z]{{50}}x{i}": 4 for i in range(250)}},
    ],
    ids=lambda fields: str(fields)[:60],
)
@pytest.mark.timeout(20)  # Python's own matching takes hours over the first ones
def test_adp_11_hostile_expressions_end_soon(fields: dict[str, Any]) -> None:
    module = "model.layers.{}.self_attn.q_proj_with_quite_a_long_name"
    base = BaseModel("0" * 64, {}, 8, 8, 64, {module.format(i): LinearShape(4, 4) for i in range(64)})
    fields = {"target_modules": r"model\.layers.*"} | fields if "layers_pattern" not in fields else fields
    codes = {"pattern_too_long", "pattern_too_complex", "too_many_patterns", "unsupported_pattern", "no_modules"}
    code = "accepted"
    try:
        resolve(base, **fields)
    except ConfigRejected as refused:
        code = refused.code
    assert code == "accepted" or code in codes


def test_adp_11_many_complex_expressions_are_too_many() -> None:
    """Linear time is not enough: 250 of these over all modules of a large model would take a minute."""
    with pytest.raises(ConfigRejected) as refused:
        parse_config(
            json.dumps(
                {
                    "peft_type": "LORA",
                    "target_modules": "all-linear",
                    "rank_pattern": {f"(.*[a-z_.].*){{30}}{i}": 4 for i in range(250)},
                }
            ).encode()
        )
    assert refused.value.code == "pattern_too_complex"


def test_adp_11_a_pattern_for_every_module_is_not_too_many(base: BaseModel) -> None:
    """What rank-searching trainers write: hundreds of full names."""
    modules = [f"model.layers.{i}.self_attn.{side}_proj" for i in range(120) for side in "qkvo"]
    found = resolve(base, rank_pattern=dict.fromkeys(reversed(modules), 3))
    assert {target.rank for target in found.modules} == {3}


@pytest.mark.parametrize(
    "text",
    [
        r"(?=q)q_proj",
        r"(q)\1",
        r"q_proj\Z",
        r"[[:alpha:]]_proj",
        r"q{,2}_proj",
        r"\pL_proj",
        r"\Qq_proj\E",
        "q++",
        "(?P<x",
    ],
)
def test_adp_11_expressions_that_the_engines_read_differently_are_refused(text: str) -> None:
    with pytest.raises(ConfigRejected) as refused:
        compile_pattern("{}", text, "target_modules", PatternBudget(Limits()))
    assert refused.value.code == "unsupported_pattern"


_PIECES = [
    "q",
    "_proj",
    ".",
    r"\.",
    "*",
    "+",
    "?",
    "|",
    "(",
    ")",
    "[a-q]",
    "[^.]",
    "{1,2}",
    r"\d",
    "^",
    "$",
    "layers",
    "(?i)",
]


@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=8).map("".join))
def test_adp_11_an_accepted_expression_matches_as_in_python(text: str) -> None:
    modules = ("model.layers.0.self_attn.q_proj", "layers.q", "q_proj", "lm_head", "model.q", "qq", "Q")
    for template in ("{}", r"(.*\.)?({})$"):
        try:
            ours = compile_pattern(template, text, "target_modules", PatternBudget(Limits()))
        except ConfigRejected:
            return
        theirs = re.compile(template.replace("{}", text))
        for module in modules:
            assert bool(ours.fullmatch(module)) == bool(theirs.fullmatch(module)), module
            assert bool(ours.match(module)) == bool(theirs.match(module)), module
