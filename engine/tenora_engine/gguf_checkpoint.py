"""What a llama GGUF holds, as the files of a Hugging Face checkpoint: config, tokenizer, weights in bf16."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

Progress = Callable[[str, int, int], None]  # (what is being done, done, total), both in bytes
Floats = npt.NDArray[np.float32]

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


def open_gguf(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise SourceMissing("reading a GGUF needs the package gguf: run `pip install 'tenora[embedded]'`") from error
    try:
        return GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise SourceUnsupported(f"{source} is not a readable GGUF: {error}") from error


def model_config(meta: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
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


def write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
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

    write_json(
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


def write_weights(tensors: list[Any], config: dict[str, Any], file: BinaryIO, report: Progress) -> None:
    """One bf16 safetensors file: length of the header, header padded to 8 bytes, tensors back to back."""
    from gguf import dequantize

    heads = {".q_proj.": config["num_attention_heads"], ".k_proj.": config["num_key_value_heads"]}
    named = sorted((checkpoint_name(tensor.name), tensor) for tensor in tensors)
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


def checkpoint_name(name: str) -> str:
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


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
