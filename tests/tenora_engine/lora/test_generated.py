"""Adapters drawn at random: a legal one, as PEFT makes it, is accepted and gives PEFT's logits; an illegal one is
refused by the name of what is wrong with it."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_under_test import EngineUnderTest, prompt
from families import tiny_model
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st
from peft_adapters import load_base, make_adapter, oracle_logprobs
from safetensors.torch import load_file, save_file

from tenora_adapters.base import BaseModel, read_base_model
from tenora_adapters.blobs import FolderStore
from tenora_adapters.errors import AdapterRejected
from tenora_adapters.numeric import check_numbers
from tenora_adapters.package import StagedFiles
from tenora_adapters.publish import publish
from tenora_adapters.validate import validate_package

TOLERANCE = 1e-4
TOKENS = prompt(11)
# Small, with biases and a head of its own; tied, with a bias of q, k and v.
BASES = {
    "llama": {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": 2},
    "qwen2": {"hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2},
}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PATHS = ["self_attn.q_proj", "layers.1.self_attn.v_proj", "model.layers.0.mlp.up_proj", "1.mlp.down_proj"]
EXPRESSIONS = [
    r".*\.(q|v)_proj",
    r"model\.layers\.[01]\.mlp\.(gate|up)_proj",
    r".*\.1\..*_proj",
    r"(.*self_attn\.[kv]_proj|lm_head)",
    r"model\.embed_tokens|.*\.o_proj",
]
KEYS = [
    "q_proj",
    "proj",
    "up_proj",
    "self_attn.v_proj",
    r"layers\.1\.self_attn\.\w+",
    "^model.layers.0.mlp.up_proj",
    r".*",
    r"(gate|down)_proj",
    "embed_tokens",
    "lm_head",
    "nothing",
]
SAVED = ["input_layernorm", "post_attention_layernorm", "model.norm", "layernorm", "lm_head", "embed_tokens"]


@dataclass(frozen=True, repr=False)
class Workshop:
    """A base, an engine that serves it, and where adapters of it are made."""

    folder: Path
    model: Any
    base: BaseModel
    store: FolderStore
    engine: EngineUnderTest

    def accept(self, adapter: Path) -> str:
        """Everything that an upload has to pass; its digest. Raises AdapterRejected."""
        validated = validate_package(
            StagedFiles(adapter / "adapter_config.json", adapter / "adapter_model.safetensors"), self.base
        )
        publish(self.store, validated)
        assert check_numbers(self.store, validated.manifest, self.base)["accepted"]
        return validated.manifest.digest


@pytest.fixture(scope="module")
def workshops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Workshop]]:
    made = {}
    for family, sizes in BASES.items():
        root = tmp_path_factory.mktemp(family)
        folder = tiny_model(root / "model", family, **{"head_dim": 8} | sizes)
        store = FolderStore(root / "blobs")
        engine = EngineUnderTest(folder, store, adapter_slots=2, host_adapters=4)
        made[family] = Workshop(folder, load_base(folder), read_base_model(folder), store, engine)
    yield made
    for workshop in made.values():
        workshop.engine.close()


def some(names: list[str], most: int = 3) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True)


ALPHAS = st.sampled_from([1, 4, 8, 16, 7.5, 0.25, -3, 0])


@st.composite
def legal(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a LoraConfig, and the dtype that its weights are saved in."""
    chosen: dict[str, Any] = {"r": draw(st.integers(1, 9)), "lora_alpha": draw(ALPHAS)}
    targets: Any = draw(
        st.one_of(
            some([*LINEAR, "embed_tokens", "lm_head"], 5),
            some([*LINEAR, *PATHS]),
            st.sampled_from(EXPRESSIONS),
            st.just("all-linear"),
        )
    )
    chosen["target_modules"] = targets
    for flag in ("use_rslora", "use_dora", "fan_in_fan_out"):
        chosen[flag] = draw(st.booleans())
    chosen["bias"] = draw(st.sampled_from(["none", "lora_only", "all"]))
    if isinstance(targets, list) and draw(st.booleans()):
        chosen["layers_to_transform"] = draw(st.sampled_from([0, 1, [0], [1], [0, 1], [1, 9], []]))
        if chosen["layers_to_transform"] != []:
            chosen["layers_pattern"] = draw(st.sampled_from([None, "layers", ["blocks", "layers"]]))
    chosen["exclude_modules"] = draw(st.sampled_from([None, ["down_proj"], ["1.self_attn.q_proj"], r".*\.0\.mlp\..*"]))
    chosen["modules_to_save"] = draw(st.one_of(st.none(), some(SAVED, 2)))
    for name, values in (("rank_pattern", st.integers(1, 12)), ("alpha_pattern", ALPHAS)):
        keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
        chosen[name] = {key: draw(values) for key in keys}
    chosen["dtype"] = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    return chosen


def check_legal(workshop: Workshop, chosen: dict[str, Any], seed: int = 0) -> None:
    chosen = dict(chosen)
    dtype = chosen.pop("dtype")
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder)
        try:
            make_adapter(copy.deepcopy(workshop.model), adapter, chosen, seed=seed)
        except ValueError:
            reject()  # PEFT itself says no: it adapts no module
        rewrite(adapter, chosen, dtype)
        want = oracle_logprobs(copy.deepcopy(workshop.model), adapter, TOKENS)
        if want.isnan().any():
            reject()  # PEFT has no answer: a row of zeros has no direction for DoRA
        digest = workshop.accept(adapter)
    got = workshop.engine.ask(TOKENS, [digest], max_tokens=0, prompt_logprobs=2)
    assert got.prompt_logprobs is not None, got.failed
    for position, entry in enumerate(got.prompt_logprobs[1:], start=1):
        assert entry is not None
        for token_id, logprob in [(entry.token_id, entry.logprob), *entry.top]:
            assert abs(float(want[position - 1, token_id]) - logprob) < TOLERANCE


def rewrite(adapter: Path, chosen: dict[str, Any], dtype: torch.dtype) -> None:
    """The patterns in the order that was drawn (PEFT sorts them), the weights of LoRA in another dtype."""
    config, weights = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    patterns = {key: value for key, value in chosen.items() if key.endswith("_pattern")}
    config.write_text(json.dumps(json.loads(config.read_bytes()) | patterns))
    tensors = load_file(weights)
    save_file({name: t.to(dtype) if ".lora_" in name else t for name, t in tensors.items()}, weights)


def generate(count: int) -> Callable[[Any], Any]:
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))


families = st.sampled_from(sorted(BASES))
EVERYTHING = {
    "r": 4,
    "target_modules": ["embed_tokens", "q_proj", "up_proj"],
    "use_dora": True,
    "use_rslora": True,
    "bias": "all",
    "modules_to_save": ["layernorm", "lm_head"],
    "rank_pattern": {"q_proj": 2, ".*": 5},
    "dtype": torch.bfloat16,
}


@example(family="qwen2", chosen=EVERYTHING)
@given(family=families, chosen=legal())
@generate(80)
def test_legal(workshops: dict[str, Workshop], family: str, chosen: dict[str, Any]):
    """ADP-01, ADP-06, ADP-08, ADP-10."""
    check_legal(workshops[family], chosen)


@pytest.mark.long
@pytest.mark.timeout(1200)
@given(family=families, chosen=legal(), seed=st.integers(0, 99))
@generate(1400)
def test_many_legal(workshops: dict[str, Workshop], family: str, chosen: dict[str, Any], seed: int):
    check_legal(workshops[family], chosen, seed)


# -- illegal: a legal adapter with one thing changed, and what the refusal must name ----------------------------------

UNSUPPORTED: dict[str, Any] = {
    "lora_bias": True,
    "trainable_token_indices": [1, 2],
    "layer_replication": [[0, 2]],
    "target_parameters": ["experts.weight"],
    "megatron_config": {"a": 1},
    "use_qalora": True,
    "use_bdlora": {"nblocks": 2},
    "kasa_config": {"beta": 1e-4},
    "velora_config": {"rank": 1},
    "monteclora_config": {"x": 1},
    "arrow_config": {"top_k": 2},
    "ensure_weight_tying": True,
}
ILLEGAL: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.just(value) for name, value in UNSUPPORTED.items()},
    "init_lora_weights": st.sampled_from(["pissa", "pissa_niter_4", "olora", "corda", "loftq", "mica", "lora_ga", 3]),
    "peft_type": st.sampled_from(["ADALORA", "LOHA", "IA3", "lora", None, 1]),
    "task_type": st.sampled_from(["SEQ_CLS", "SEQ_2_SEQ_LM", 1]),
    "r": st.one_of(st.integers(max_value=0), st.integers(min_value=257), st.sampled_from([True, 4.0, "4", None, [4]])),
    "lora_alpha": st.sampled_from(["8", None, True, [8], 1e38, -1e300]),
    "bias": st.sampled_from(["some", "lora", True, ["all"]]),
    "use_dora": st.sampled_from([1, "true", None]),
    "use_rslora": st.sampled_from([0, "yes"]),
    "alora_invocation_tokens": st.sampled_from([[], [-1], [3] * 65, ["3"], "<go>", {"3": 4}, 3]),
    "modules_to_save": st.sampled_from([["q_proj"], ["mlp"], ["layers.0"], ["norm.*"], "q_proj", {"a": 1}, [1]]),
    "target_modules": st.sampled_from([[], "", None, ["nothing"], {"q_proj": 1}, [1], r"(.*)\1", r"(?=q).*", "(", 5]),
    "exclude_modules": st.sampled_from([[1], {"a": 1}, r"(?<!x)q_proj", "["]),
    "layers_to_transform": st.sampled_from([[True], ["1"], -1, [-2], "0", 1.0, {"0": 1}]),
    "rank_pattern": st.sampled_from([{"q_proj": 0}, {"q_proj": "4"}, {"(?!a)": 4}, ["q_proj"], {"q_proj": 9999}]),
    "alpha_pattern": st.sampled_from([{"q_proj": None}, {"(": 4}, {"q_proj": "1"}, "q_proj", {"q_proj": 1e99}]),
    "base_model_name_or_path": st.sampled_from([1, ["a"], {"a": 1}, True]),
}
features = st.from_regex(r"[a-z]{3,12}_[a-z]{3,12}", fullmatch=True).filter(lambda name: name not in ILLEGAL)


@st.composite
def illegal_config(draw: st.DrawFn) -> tuple[str, Any]:
    """A field, and a value that it must not have; also fields of a PEFT to come."""
    if draw(st.integers(0, 9)) == 0:
        return "next_" + draw(features), draw(st.sampled_from([True, 1, "on", [1], {"a": 1}]))
    name = draw(st.sampled_from(sorted(ILLEGAL)))
    return name, draw(ILLEGAL[name])


@st.composite
def spoilt_tensors(draw: st.DrawFn) -> Callable[[dict[str, torch.Tensor]], str]:
    """Changes one tensor so that it cannot be; says which one."""
    index, kind = draw(st.integers(0, 10**6)), draw(st.sampled_from(sorted(_SPOILT)))

    def spoil(tensors: dict[str, torch.Tensor]) -> str:
        name = sorted(tensors)[index % len(tensors)]
        return _SPOILT[kind](tensors, name)

    return spoil


def _drop(tensors: dict[str, torch.Tensor], name: str) -> str:
    del tensors[name]
    return name


def _add(tensors: dict[str, torch.Tensor], name: str) -> str:
    tensors[name.replace("model.layers", "language_model.layers") + "_"] = tensors[name].clone()
    return name.replace("model.layers", "language_model.layers") + "_"


def _grow(tensors: dict[str, torch.Tensor], name: str) -> str:
    tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
    return name


def _poison(tensors: dict[str, torch.Tensor], name: str) -> str:
    tensors[name].view(-1)[-1] = float("nan")
    return name


def _narrow(tensors: dict[str, torch.Tensor], name: str) -> str:
    tensors[name] = tensors[name].double()
    return name


_SPOILT = {"drop": _drop, "add": _add, "grow": _grow, "poison": _poison, "narrow": _narrow}


@pytest.fixture(scope="module")
def plain(workshops: dict[str, Workshop], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A legal adapter that has something of everything."""
    chosen = EVERYTHING | {"target_modules": ["q_proj", "up_proj"]}
    dtype = chosen.pop("dtype")
    folder = make_adapter(copy.deepcopy(workshops["qwen2"].model), tmp_path_factory.mktemp("plain"), chosen)
    rewrite(folder, chosen, dtype)
    return folder


def check_illegal(workshop: Workshop, plain: Path, field: tuple[str, Any]) -> None:
    name, value = field
    refused = refusal(workshop, plain, {name: value}, lambda tensors: None)
    assert (refused.param or "").startswith(name), (refused.param, refused.message)
    assert len(refused.message) < 1000


def check_spoilt(workshop: Workshop, plain: Path, spoil: Callable[[dict[str, torch.Tensor]], str]) -> None:
    named: list[str] = []
    refused = refusal(workshop, plain, {}, lambda tensors: named.append(spoil(tensors)))
    assert refused.param == named[0], refused.message


def refusal(workshop: Workshop, plain: Path, fields: dict[str, Any], spoil: Any) -> AdapterRejected:
    config = json.loads((plain / "adapter_config.json").read_bytes()) | fields
    tensors = load_file(plain / "adapter_model.safetensors")
    spoil(tensors)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, Path(folder) / "adapter_model.safetensors")
        with pytest.raises(AdapterRejected) as refused:
            workshop.accept(Path(folder))
    return refused.value


@given(field=illegal_config())
@generate(60)
def test_illegal_configs(workshops: dict[str, Workshop], plain: Path, field: tuple[str, Any]):
    """ADP-02, ADP-03, ADP-08, ADP-10, ADP-11."""
    check_illegal(workshops["qwen2"], plain, field)


@given(spoil=spoilt_tensors())
@generate(20)
def test_illegal_tensors(workshops: dict[str, Workshop], plain: Path, spoil: Any):
    """ADP-01, ADP-02, ADP-04."""
    check_spoilt(workshops["qwen2"], plain, spoil)


@pytest.mark.long
@pytest.mark.timeout(600)
@given(field=illegal_config(), spoil=spoilt_tensors())
@generate(600)
def test_many_illegal(workshops: dict[str, Workshop], plain: Path, field: tuple[str, Any], spoil: Any):
    check_illegal(workshops["qwen2"], plain, field)
    check_spoilt(workshops["qwen2"], plain, spoil)


def test_the_adapter_that_is_spoilt_is_legal(workshops: dict[str, Workshop], plain: Path):
    """The control of the tests above."""
    assert len(workshops["qwen2"].accept(plain)) == 64
