"""The numbers of a published adapter: read tensor by tensor, so that memory is bounded by the largest of them.

For each module, with A [rank, in] and B [out, rank]:

    delta norm    |s| * ||B A||_F = |s| * sqrt(trace((B^T B)(A A^T)))     two rank x rank products, never out x in
    forward pass  y = s * B (A x), x a fixed vector of `in` normal values; of the embedding, its largest token  [out]
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tenora_adapters.base import EMBEDDING, BaseModel
from tenora_adapters.blobs import BlobError, BlobStore
from tenora_adapters.errors import NumbersRejected
from tenora_adapters.header import read_header
from tenora_adapters.manifest import WEIGHTS_FILE, Manifest, ModuleLora, Replacement, TensorEntry, Warning, blob_key

Floats = npt.NDArray[np.float32]
_CHUNK_BYTES: Final = 4 << 20


class ModuleNumbers(msgspec.Struct, frozen=True):
    module: str
    rank: int
    scaling: float
    delta_norm: float  # Frobenius norm of what is added to the module's weight; of DoRA, before its rows are scaled
    weights: list[str]  # the tensors of the file that are taken for it


class ReplacedNumbers(msgspec.Struct, frozen=True):
    parameter: str  # of the base, which the adapter brings whole
    values: int


class AcceptanceReport(msgspec.Struct, frozen=True):
    """What an accepted adapter does, module by module, and what its owner should know."""

    modules: list[ModuleNumbers]
    warnings: list[Warning]  # the manifest's, and those of the numbers
    accepted: bool = True
    replaced: list[ReplacedNumbers] = []


def check_numbers(store: BlobStore, manifest: Manifest, base: BaseModel) -> dict[str, Any]:
    """The fields of AcceptanceReport, ready for JSON.

    Raises NumbersRejected naming the tensor, and BlobError when the store fails or what it holds is not the adapter.
    """
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    with store.open(blob_key(manifest.digest, WEIGHTS_FILE)) as file:
        if _sha256(file) != manifest.weights_sha256:
            raise BlobError(f"the stored weights of {manifest.digest} do not have their digest")
        file.seek(0)
        data_start = read_header(file, manifest.weights_bytes).data_start
        modules = [_check_module(file, data_start, lora, tensors, base) for lora in manifest.modules]
        replaced = [_check_replaced(file, data_start, item, tensors[item.tensor]) for item in manifest.replaced]
        for copy in manifest.copies:
            _check_copy(file, data_start, copy, tensors[copy.tensor], base)
    warnings = [warning for warning in manifest.warnings if warning.code != "no_effect"]
    if not (manifest.dora or replaced or any(module.delta_norm for module in modules)):
        warnings.append(Warning("no_effect", "nothing is added to any module: it answers as the base model does"))
    report: dict[str, Any] = msgspec.to_builtins(AcceptanceReport(modules, warnings, replaced=replaced))
    return report


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _check_module(
    file: BinaryIO, data_start: int, lora: ModuleLora, tensors: dict[str, TensorEntry], base: BaseModel
) -> ModuleNumbers:
    a = _finite(file, data_start, tensors[lora.lora_a])
    b = _finite(file, data_start, tensors[lora.lora_b])
    if lora.dora_magnitude is not None:
        _finite(file, data_start, tensors[lora.dora_magnitude])
    shape = base.shape_of(lora.module)
    with np.errstate(over="ignore", invalid="ignore"):  # looked for below
        if lora.module == EMBEDDING:
            low = a[:, np.abs(a).max(0).argmax()]
        else:  # Seeded by its name: the same report for the same adapter, and no x in common between modules.
            random = np.random.default_rng(zlib.crc32(lora.module.encode()))
            low = a @ random.standard_normal(shape.in_features, dtype=np.float32)
        y = np.float32(lora.scaling) * (b @ low)
    if y.shape != (shape.out_features,) or not np.isfinite(y).all():
        raise NumbersRejected(
            f"{lora.module}: the forward pass on ordinary input overflows", param=lora.lora_b, code="overflow"
        )
    a64, b64 = a.astype(np.float64), b.astype(np.float64)  # squares of fp32 values may not fit in fp32
    squared = float(np.sum((b64.T @ b64) * (a64 @ a64.T)))
    return ModuleNumbers(
        module=lora.module,
        rank=lora.rank,
        scaling=lora.scaling,
        delta_norm=abs(lora.scaling) * math.sqrt(max(squared, 0.0)),
        weights=[name for name in (lora.lora_a, lora.lora_b, lora.dora_magnitude) if name is not None],
    )


def _check_replaced(file: BinaryIO, data_start: int, replaced: Replacement, tensor: TensorEntry) -> ReplacedNumbers:
    for values in _chunks(file, data_start, tensor):
        _check_finite(values, tensor)
    return ReplacedNumbers(replaced.parameter, math.prod(tensor.shape))


def _check_copy(file: BinaryIO, data_start: int, copy: Replacement, tensor: TensorEntry, base: BaseModel) -> None:
    """PEFT would put it in the base's place: it must be the base's, whatever its dtype."""
    own = base.embeddings[copy.parameter.removesuffix(".weight")]
    digest = hashlib.sha256()
    for values in _chunks(file, data_start, tensor):
        data = encode_floats(values, own.dtype)
        if not np.array_equal(decode_floats(data, own.dtype), values):
            break
        digest.update(data)
    if digest.hexdigest() != own.sha256:
        raise NumbersRejected(
            f"{copy.tensor} is not the base's own {copy.parameter}: what was trained whole belongs in modules_to_save, "
            "and what was not is left out by save_pretrained(..., save_embedding_layers=False)",
            param=copy.tensor,
            code="changed_base_weights",
        )


def _chunks(file: BinaryIO, data_start: int, tensor: TensorEntry) -> Iterator[Floats]:
    file.seek(data_start + tensor.begin)
    remaining = tensor.end - tensor.begin
    while data := file.read(min(remaining, _CHUNK_BYTES)):
        remaining -= len(data)
        yield decode_floats(data, tensor.dtype)


def _finite(file: BinaryIO, data_start: int, tensor: TensorEntry) -> Floats:
    file.seek(data_start + tensor.begin)
    values = decode_floats(file.read(tensor.end - tensor.begin), tensor.dtype)
    _check_finite(values, tensor)
    return values.reshape(tensor.shape)


def _check_finite(values: Floats, tensor: TensorEntry) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(values.size - np.count_nonzero(finite))
        raise NumbersRejected(f"{tensor.name} holds {bad} values that are NaN or infinite", param=tensor.name)


def decode_floats(data: bytes, dtype: str) -> Floats:
    """fp32 values of little-endian F32, F16 or BF16 bytes."""
    if dtype == "BF16":  # the upper half of an fp32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def encode_floats(values: Floats, dtype: str) -> bytes:
    """Little-endian F32, F16 or BF16 bytes; what does not fit a dtype is cut."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    with np.errstate(over="ignore"):
        return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
