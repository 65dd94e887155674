"""The numbers of a published adapter: read tensor by tensor, so that memory is bounded by the largest of them.

For each module, with A [rank, in] and B [out, rank]:

    delta norm    |s| * ||B A||_F = |s| * sqrt(trace((B^T B)(A A^T)))     two rank x rank products, never out x in
    forward pass  y = s * B (A x), x a fixed vector of `in` normal values  [out]
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from tenora_adapters.base import BaseModel
from tenora_adapters.blobs import BlobError, BlobStore
from tenora_adapters.errors import NumbersRejected
from tenora_adapters.header import read_header
from tenora_adapters.manifest import WEIGHTS_FILE, Manifest, ModuleLora, TensorEntry, Warning, blob_key

Floats = npt.NDArray[np.float32]


class ModuleNumbers(msgspec.Struct, frozen=True):
    module: str
    rank: int
    scaling: float
    delta_norm: float  # Frobenius norm of what is added to the module's weight; of DoRA, before its rows are scaled


class AcceptanceReport(msgspec.Struct, frozen=True):
    """What an accepted adapter does, module by module, and what its owner should know."""

    modules: list[ModuleNumbers]
    warnings: list[Warning]  # the manifest's, and those of the numbers
    accepted: bool = True


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
    warnings = [warning for warning in manifest.warnings if warning.code != "no_effect"]
    if not manifest.dora and not any(module.delta_norm for module in modules):
        warnings.append(Warning("no_effect", "nothing is added to any module: it answers as the base model does"))
    report: dict[str, Any] = msgspec.to_builtins(AcceptanceReport(modules, warnings))
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
    linear = base.linears[lora.module]
    # Seeded by the module's name: the same report for the same adapter, and no x in common between modules.
    x = np.random.default_rng(zlib.crc32(lora.module.encode())).standard_normal(linear.in_features, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # looked for below
        y = np.float32(lora.scaling) * (b @ (a @ x))
    if y.shape != (linear.out_features,) or not np.isfinite(y).all():
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
    )


def _finite(file: BinaryIO, data_start: int, tensor: TensorEntry) -> Floats:
    file.seek(data_start + tensor.begin)
    values = decode_floats(file.read(tensor.end - tensor.begin), tensor.dtype)
    if not np.isfinite(values).all():
        bad = int(values.size - np.count_nonzero(np.isfinite(values)))
        raise NumbersRejected(f"{tensor.name} holds {bad} values that are NaN or infinite", param=tensor.name)
    return values.reshape(tensor.shape)


def decode_floats(data: bytes, dtype: str) -> Floats:
    """fp32 values of little-endian F32, F16 or BF16 bytes."""
    if dtype == "BF16":  # the upper half of an fp32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)
