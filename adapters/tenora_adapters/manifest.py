"""The contract that says what an adapter *is*: resolved once at upload, read by every engine that loads it.

A stored adapter is three blobs under `adapters/<digest>/`, written in this order, so that the presence of the
manifest means that all of it is there:

    adapter_model.safetensors   the weights, as uploaded
    adapter_config.json         PEFT's config, byte for byte as uploaded
    manifest.json               this struct

The digest is the identity of a version everywhere (wire, prefix-cache key, usage event):

    SHA-256( "tenora.adapter.v1" NUL || SHA-256(config bytes) || SHA-256(weights bytes) )
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

# The newest that engines of this version read. Written is the lowest that says it all, so that earlier ones read what
# they can serve; 1 is without `replaced`, `copies` and adapters of the embedding.
MANIFEST_SCHEMA: Final = 2
WEIGHTS_FILE: Final = "adapter_model.safetensors"
CONFIG_FILE: Final = "adapter_config.json"
MANIFEST_FILE: Final = "manifest.json"

_SEALED: Final = re.compile(rb'(?P<body>\{.*),"seal":"(?P<seal>[0-9a-f]{64})"\}', re.DOTALL)


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor of the weights file. Offsets are bytes from the end of the header, half-open."""

    name: str
    dtype: str  # F32 | F16 | BF16
    shape: tuple[int, ...]
    begin: int
    end: int


class ModuleLora(msgspec.Struct, frozen=True):
    """LoRA of one linear module: y += scaling * B (A x), A is [rank, in_features], B is [out_features, rank].

    Of the embedding in_features is the vocabulary, out_features the hidden size, and A x the token's column of A.
    """

    module: str  # the base's module path, as in its checkpoint: "model.layers.0.self_attn.q_proj"
    rank: int
    scaling: float  # alpha / r, or alpha / sqrt(r) with rsLoRA; patterns resolved in PEFT's own order
    lora_a: str  # tensor names in the weights file
    lora_b: str
    dora_magnitude: str | None = None


class Replacement(msgspec.Struct, frozen=True):
    """A parameter of the base that the adapter brings whole."""

    parameter: str  # in the base's checkpoint: "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"
    tensor: str  # in the weights file


class Warning(msgspec.Struct, frozen=True):
    code: str  # "no_effect", "unmatched_pattern", ...
    message: str


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    schema: int
    digest: str
    base_fingerprint: str
    config_sha256: str
    weights_sha256: str
    weights_bytes: int
    modules: tuple[ModuleLora, ...]
    tensors: tuple[TensorEntry, ...]
    rslora: bool = False
    dora: bool = False
    alora_invocation: tuple[int, ...] | None = None  # token ids, at least one; see `PeftConfig.invocation`
    warnings: tuple[Warning, ...] = ()
    replaced: tuple[Replacement, ...] = ()  # biases that were trained, and `modules_to_save`
    # What PEFT saved of the base beside its own: of no effect, since `numeric` takes only what equals the base's.
    copies: tuple[Replacement, ...] = ()

    @property
    def max_rank(self) -> int:
        return max((m.rank for m in self.modules), default=0)


def adapter_digest(config_sha256: str, weights_sha256: str) -> str:
    """Digest of an adapter version from the lower-case hex digests of its two files."""
    framed = b"tenora.adapter.v1\0" + bytes.fromhex(config_sha256) + bytes.fromhex(weights_sha256)
    return hashlib.sha256(framed).hexdigest()


def blob_key(digest: str, file: str) -> str:
    """Key in the blob store of one of an adapter's three files."""
    return f"adapters/{digest}/{file}"


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON with a seal as its last key: the SHA-256 of the JSON without it.

    The digest covers what was uploaded, not what was resolved from it; the seal tells a damaged manifest, so that a
    flipped digit of a scaling is an error and not another adapter.
    """
    body = msgspec.json.encode(manifest)
    return body[:-1] + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def decode_manifest(data: bytes) -> Manifest:
    """Raises msgspec.DecodeError (or its child ValidationError) on anything that is not a whole, sealed manifest."""
    sealed = _SEALED.fullmatch(data)
    if sealed is None or hashlib.sha256(sealed["body"] + b"}").hexdigest().encode() != sealed["seal"]:
        raise msgspec.ValidationError("the manifest is not sealed, or its seal does not match")
    return msgspec.json.decode(data, type=Manifest)
