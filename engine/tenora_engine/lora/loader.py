"""Fetches an adapter from the blob store by digest and trusts nothing: every byte is checked against the digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tenora_adapters.base import BaseModel
from tenora_adapters.blobs import BlobError, BlobNotFound, BlobStore
from tenora_adapters.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    WEIGHTS_FILE,
    Manifest,
    ModuleLora,
    adapter_digest,
    blob_key,
    decode_manifest,
)
from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.dora import BaseWeights, gain_and_offset, row_scale
from tenora_engine.lora.weights import AdapterWeights, ModuleWeights, UnknownModule, arrange
from tenora_engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Where adapters come from and what they must fit."""

    store: BlobStore
    base: BaseModel
    spec: ModelSpec
    dtype: torch.dtype
    weights: BaseWeights  # which DoRA needs

    def load(self, digest: str) -> AdapterWeights:
        """Read, verify and arrange one adapter. Raises AdapterUnavailable."""
        try:
            manifest = decode_manifest(self._read(digest, MANIFEST_FILE))
            config, weights = self._read(digest, CONFIG_FILE), self._read(digest, WEIGHTS_FILE)
        except BlobNotFound as error:
            raise AdapterUnavailable("the adapter's files are no longer there") from error
        except (BlobError, OSError) as error:
            raise AdapterUnavailable("the adapter's files cannot be read", retryable=True) from error
        except msgspec.DecodeError as error:
            raise AdapterUnavailable("the adapter's manifest is corrupt") from error
        self._verify(digest, manifest, config, weights)
        try:
            tensors = safetensors.torch.load(weights)
            modules = {lora.module: self._module(lora, tensors) for lora in manifest.modules}
            return arrange(modules, self.spec, self.dtype)
        except (SafetensorError, KeyError) as error:
            raise AdapterUnavailable("the adapter's weights do not hold what its manifest says") from error
        except UnknownModule as error:
            raise AdapterUnavailable(f"this engine cannot adapt the module {error}") from error

    def _read(self, digest: str, file: str) -> bytes:
        with self.store.open(blob_key(digest, file)) as blob:
            return blob.read()

    def _verify(self, digest: str, manifest: Manifest, config: bytes, weights: bytes) -> None:
        if manifest.schema > MANIFEST_SCHEMA:
            raise AdapterUnavailable(f"the adapter's manifest has schema {manifest.schema}, newer than this engine")
        found = adapter_digest(hashlib.sha256(config).hexdigest(), hashlib.sha256(weights).hexdigest())
        if not digest == manifest.digest == found:
            raise AdapterUnavailable("the adapter's files are corrupt: they do not have its digest")
        if not self.base.is_known_as(manifest.base_fingerprint):
            raise AdapterUnavailable("the adapter was made for another base model")
        if any((lora.dora_magnitude is not None) != manifest.dora for lora in manifest.modules):
            raise AdapterUnavailable("the adapter's manifest says of DoRA what its modules do not")
        if manifest.alora_invocation is not None:
            raise AdapterUnavailable("this engine does not serve activated LoRA (aLoRA) adapters")

    def _module(self, lora: ModuleLora, tensors: dict[str, Tensor]) -> ModuleWeights:
        a, b = tensors[lora.lora_a], tensors[lora.lora_b]
        linear = self.base.linears.get(lora.module)
        if linear is None:
            raise UnknownModule(lora.module)
        if a.shape != (lora.rank, linear.in_features) or b.shape != (linear.out_features, lora.rank):
            raise AdapterUnavailable(f"the adapter's weights of {lora.module} do not have the base's shape")
        if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
            raise AdapterUnavailable(f"the adapter's weights of {lora.module} hold NaN or infinity")
        if lora.dora_magnitude is None:
            return ModuleWeights(a, b, lora.scaling)
        magnitude = tensors[lora.dora_magnitude]
        if magnitude.shape != (linear.out_features,):
            raise AdapterUnavailable(f"the adapter's magnitudes of {lora.module} do not have the base's shape")
        scale = row_scale(self.weights.weight(lora.module), a, b, lora.scaling, magnitude)
        if not bool(scale.isfinite().all()):
            raise AdapterUnavailable(f"the adapter's row scale of {lora.module} holds NaN or infinity")
        affine = gain_and_offset(scale, self.weights.bias(lora.module))
        return ModuleWeights(a, b.float() * scale[:, None], lora.scaling, affine)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load's end."""

    digest: str
    result: AdapterWeights | AdapterUnavailable


class AdapterLoader:
    """Loads off the step path, on a thread of its own. `poll` gives what is done; `wake` is called at each end."""

    def __init__(self, load: Callable[[str], AdapterWeights], wake: Callable[[], None] = lambda: None) -> None:
        self._load = load
        self._wake = wake
        self._done: SimpleQueue[Loaded] = SimpleQueue()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load")

    def start(self, digest: str) -> None:
        self._pool.submit(self._run, digest)

    def poll(self) -> list[Loaded]:
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except Empty:
                return done

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, digest: str) -> None:
        result: AdapterWeights | AdapterUnavailable
        try:
            result = self._load(digest)
        except AdapterUnavailable as error:
            result = error
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one adapter is that adapter's end alone
            result = AdapterUnavailable(f"the adapter could not be loaded ({type(error).__name__})")
        self._done.put(Loaded(digest, result))
        self._wake()
