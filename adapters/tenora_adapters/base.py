"""What adapters are checked against: the shape and identity of a base model, read without torch.

The fingerprint, not a name, says whether two processes speak of the same base:

    SHA-256( "tenora.base.v1" NUL || canonical JSON of the architecture || SHA-256(embedding tensor bytes) )

The list of what counts as architecture has grown once. A base for which that makes a difference keeps the fingerprint
of before as its `former_fingerprint`: what was accepted for it then is still its own.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors import SafetensorError, safe_open

# Of config.json, what changes the computation. Names and training details do not.
_FORMER_ARCHITECTURE: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "sliding_window",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
)
_ARCHITECTURE: Final = (
    *_FORMER_ARCHITECTURE,
    "hidden_activation",
    "layer_types",
    "max_window_layers",
    "no_rope_layer_interval",
    "no_rope_layers",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "sliding_window_pattern",
    "use_sliding_window",
)
_TIED_BY_DEFAULT: Final = frozenset({"gemma3_text", "smollm3"})  # where `tie_word_embeddings` does not say
EMBEDDING: Final = "model.embed_tokens"
HEAD: Final = "lm_head"
_SUFFIX: Final = ".weight"
_NO_PARAMETER: Final = "rotary_emb.inv_freq"
REVISION: Final = 2  # of what is read here: a stored BaseModel of an earlier one is to be read again


class BaseModelError(Exception):
    """The folder does not hold a base model that can be served."""


class LinearShape(msgspec.Struct, frozen=True):
    out_features: int
    in_features: int


class TensorDigest(msgspec.Struct, frozen=True):
    dtype: str  # as safetensors calls it
    sha256: str  # of its bytes


class BaseModel(msgspec.Struct, frozen=True):
    """Identity and shapes of a base. `linears` maps module paths (`model.layers.0.self_attn.q_proj`) to shapes."""

    fingerprint: str
    architecture: dict[str, Any]
    vocab_size: int
    context_length: int  # tokens, prompt and completion together
    num_layers: int
    linears: dict[str, LinearShape]
    vectors: dict[str, int] = {}  # sizes of norms and biases, by name in the checkpoint
    # Of the embedding and the head: PEFT saves copies of them beside adapters of theirs.
    embeddings: dict[str, TensorDigest] = {}
    former_fingerprint: str | None = None  # None: it is the same
    revision: int = 1

    def is_known_as(self, fingerprint: str) -> bool:
        return fingerprint in (self.fingerprint, self.former_fingerprint)

    def shape_of(self, module: str) -> LinearShape:
        """Of a linear module, or of the embedding as a matrix to the hidden size. Raises KeyError."""
        return LinearShape(self.hidden_size, self.vocab_size) if module == EMBEDDING else self.linears[module]

    @property
    def hidden_size(self) -> int:
        return int(self.architecture["hidden_size"])


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder, in order: those of its index, or model.safetensors, or else all.

    Some folders hold the same weights a second time, in another layout. Raises BaseModelError when there are none.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        try:
            names = {Path(name).name for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BaseModelError(f"cannot read {index}: {error}") from error
        files = sorted(folder / name for name in names)
    else:
        files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise BaseModelError(f"no *.safetensors in {folder}")
    return files


def read_base_model(folder: Path) -> BaseModel:
    """Read a Hugging Face folder (config.json and safetensors). Raises BaseModelError."""
    linears: dict[str, LinearShape] = {}
    vectors: dict[str, int] = {}
    embeddings: dict[str, TensorDigest] = {}
    try:
        config = json.loads((folder / "config.json").read_bytes())
        for file in weight_files(folder):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # not a dict
                    shape = tensors.get_slice(name).get_shape()
                    module = name.removesuffix(_SUFFIX)
                    if module in (EMBEDDING, HEAD):
                        embeddings[module] = _tensor_digest(file, name)
                    if len(shape) == 2 and name.endswith(_SUFFIX) and module != EMBEDDING:
                        linears[module] = LinearShape(shape[0], shape[1])
                    elif len(shape) == 1 and not name.endswith(_NO_PARAMETER):
                        vectors[name] = shape[0]
    except (OSError, ValueError, SafetensorError) as error:
        raise BaseModelError(f"cannot read a base model from {folder}: {error}") from error
    if not isinstance(config, dict) or EMBEDDING not in embeddings:
        raise BaseModelError(f"{folder} holds no {EMBEDDING}{_SUFFIX}, or its config.json is not an object")

    architecture = {key: config[key] for key in _ARCHITECTURE if config.get(key) is not None}
    former = {key: value for key, value in architecture.items() if key in _FORMER_ARCHITECTURE}
    embedding = bytes.fromhex(embeddings[EMBEDDING].sha256)
    fingerprint, former_fingerprint = _fingerprint(architecture, embedding), _fingerprint(former, embedding)
    try:
        if architecture.get("tie_word_embeddings", architecture.get("model_type") in _TIED_BY_DEFAULT):
            shape = LinearShape(int(architecture["vocab_size"]), int(architecture["hidden_size"]))
            linears.setdefault(HEAD, shape)
            embeddings[HEAD] = embeddings[EMBEDDING]
        return BaseModel(
            fingerprint=fingerprint,
            architecture=architecture,
            vocab_size=int(architecture["vocab_size"]),
            context_length=_context_length(config),
            num_layers=int(architecture["num_hidden_layers"]),
            linears=linears,
            vectors=vectors,
            embeddings=embeddings,
            former_fingerprint=None if former_fingerprint == fingerprint else former_fingerprint,
            revision=REVISION,
        )
    except KeyError as error:
        raise BaseModelError(f"{folder}/config.json lacks {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise BaseModelError(f"{folder}/config.json has a value that cannot be: {error}") from error


def _fingerprint(architecture: dict[str, Any], embedding: bytes) -> str:
    canonical = json.dumps(architecture, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(b"tenora.base.v1\0" + canonical + embedding).hexdigest()


def _context_length(config: dict[str, Any]) -> int:
    """max_position_embeddings, or what YaRN stretches the original context to: its users are told to set no more."""
    length = int(config["max_position_embeddings"])
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type")) != "yarn" or rope.get("factor") is None:
        return length
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or length
    return max(length, int(float(rope["factor"]) * int(original)))


def _tensor_digest(file: Path, name: str) -> TensorDigest:
    """Of one tensor's bytes, read by its offsets so that no dtype support is needed (bf16 in numpy)."""
    with file.open("rb") as data:
        header_bytes = int.from_bytes(data.read(8), "little")
        entry = json.loads(data.read(header_bytes))[name]
        begin, end = entry["data_offsets"]
        data.seek(8 + header_bytes + begin)
        digest = hashlib.sha256()
        remaining = end - begin
        while remaining > 0 and (chunk := data.read(min(remaining, 1 << 20))):
            digest.update(chunk)
            remaining -= len(chunk)
    return TensorDigest(entry["dtype"], digest.hexdigest())
