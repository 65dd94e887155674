"""Brings an adapter from its files to the host and to the device, on threads of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from queue import Empty, SimpleQueue
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError

from tenora_adapters.base import BaseModel
from tenora_adapters.manifest import Manifest
from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.dora import BaseWeights
from tenora_engine.lora.files import FileSource
from tenora_engine.lora.modules import ModuleSource
from tenora_engine.lora.weights import AdapterWeights, UnknownModule, arrange
from tenora_engine.model.spec import ModelSpec

_NUM_FETCHERS: Final = 4  # a slow store holds up none but as many adapters


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Where adapters come from and what they must fit."""

    files: FileSource
    base: BaseModel
    spec: ModelSpec
    dtype: torch.dtype
    weights: BaseWeights

    def fetch(self, digest: str) -> int:
        """Bring its files near; about how many bytes its weights will take in memory. Raises AdapterUnavailable."""
        manifest = self.files.fetch(digest)
        self._check(manifest)
        return sum(prod(tensor.shape) for tensor in manifest.tensors) * self.dtype.itemsize

    def read(self, digest: str) -> AdapterWeights:
        """Read, verify and arrange one adapter. Raises AdapterUnavailable."""
        files = self.files.read(digest)
        self._check(files.manifest)
        try:
            tensors = safetensors.torch.load(files.weights)
            modules = ModuleSource(self.base, self.weights, 1.0 if self.spec.unit_offset_norms else 0.0)
            weights = arrange(modules.of(files.manifest, tensors), self.spec, self.dtype)
        except (SafetensorError, KeyError) as error:
            raise AdapterUnavailable("the adapter's weights do not hold what its manifest says") from error
        except UnknownModule as error:
            raise AdapterUnavailable(f"this engine cannot adapt the module {error}") from error
        return replace(weights, invocation=files.manifest.alora_invocation)

    def _check(self, manifest: Manifest) -> None:
        if not self.base.is_known_as(manifest.base_fingerprint):
            raise AdapterUnavailable("the adapter was made for another base model")
        if any((lora.dora_magnitude is not None) != manifest.dora for lora in manifest.modules):
            raise AdapterUnavailable("the adapter's manifest says of DoRA what its modules do not")
        invocation = manifest.alora_invocation
        if invocation is not None and (not invocation or manifest.dora or manifest.replaced):
            raise AdapterUnavailable("the adapter's manifest makes an activated LoRA (aLoRA) of what cannot be one")


@dataclass(frozen=True, slots=True)
class Fetched:
    digest: str
    num_bytes: int  # that it will take in memory, about


@dataclass(frozen=True, slots=True)
class Read:
    digest: str
    weights: AdapterWeights
    seconds: float  # that it took to fetch and to read it


@dataclass(frozen=True, slots=True)
class Placed:
    digest: str
    placed: Any  # what the device's slots install


@dataclass(frozen=True, slots=True)
class Failed:
    digest: str
    error: AdapterUnavailable


Event = Fetched | Read | Placed | Failed


class AdapterLoader:
    """Works off the step path. Each job ends in one event, which `poll` gives; `wake` is called at each end."""

    def __init__(
        self,
        source: AdapterSource,
        place: Callable[[AdapterWeights], Any],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._place = place
        self._wake = wake
        self._clock = clock
        self._done: SimpleQueue[Event] = SimpleQueue()
        self._fetching = ThreadPoolExecutor(_NUM_FETCHERS, "adapter-fetch")
        # One, and in it one thread of torch: what it computes with, the steps lack.
        self._loading = ThreadPoolExecutor(1, "adapter-load", lambda: torch.set_num_threads(1))
        self._fetch_s: dict[str, float] = {}

    def fetch(self, digest: str) -> None:
        self._fetching.submit(self._run, digest, lambda: self._fetch(digest))

    def read(self, digest: str) -> None:
        self._loading.submit(self._run, digest, lambda: self._read(digest))

    def place(self, digest: str, weights: AdapterWeights) -> None:
        self._loading.submit(self._run, digest, lambda: Placed(digest, self._place(weights)))

    def poll(self) -> list[Event]:
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except Empty:
                return done

    def close(self) -> None:
        self._fetching.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, digest: str) -> Fetched:
        began = self._clock()
        num_bytes = self._source.fetch(digest)
        self._fetch_s[digest] = self._clock() - began
        return Fetched(digest, num_bytes)

    def _read(self, digest: str) -> Read:
        began = self._clock()
        weights = self._source.read(digest)
        return Read(digest, weights, self._clock() - began + self._fetch_s.pop(digest, 0.0))

    def _run(self, digest: str, job: Callable[[], Event]) -> None:
        event: Event
        try:
            event = job()
        except AdapterUnavailable as error:
            event = Failed(digest, error)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one adapter is that adapter's end alone
            event = Failed(digest, AdapterUnavailable(f"the adapter could not be loaded ({type(error).__name__})"))
        self._done.put(event)
        self._wake()
