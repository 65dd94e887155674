"""An adapter's files as they come from a blob store: nothing is trusted, every byte is checked against the digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tenora_adapters.blobs import BlobError, BlobNotFound, BlobStore, FolderStore
from tenora_adapters.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    WEIGHTS_FILE,
    Manifest,
    adapter_digest,
    blob_key,
    decode_manifest,
)
from tenora_engine.errors import AdapterUnavailable


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    manifest: Manifest
    config: bytes
    weights: bytes


class FileSource(Protocol):
    """Where the loader gets an adapter's files from. Its methods may be called on several threads at once."""

    is_local: bool  # what was fetched is on this machine's disk

    def fetch(self, digest: str) -> Manifest:
        """Bring the files near, as far as that is this source's business. Raises AdapterUnavailable."""

    def read(self, digest: str) -> AdapterFiles:
        """Verified. Raises AdapterUnavailable."""


class StoreFiles:
    """Straight from the blob store, each time."""

    def __init__(self, store: BlobStore) -> None:
        self.is_local = isinstance(store, FolderStore)
        self._store = store

    def fetch(self, digest: str) -> Manifest:
        return read_manifest(self._store, digest)

    def read(self, digest: str) -> AdapterFiles:
        return read_files(self._store, digest)


def read_manifest(store: BlobStore, digest: str) -> Manifest:
    """Raises AdapterUnavailable."""
    with blobs_named():
        manifest = decode_manifest(_read(store, digest, MANIFEST_FILE))
    if manifest.schema > MANIFEST_SCHEMA:
        raise AdapterUnavailable(f"the adapter's manifest has schema {manifest.schema}, newer than this engine")
    if manifest.digest != digest:
        raise AdapterUnavailable("the adapter's files are corrupt: they do not have its digest")
    return manifest


def read_files(store: BlobStore, digest: str) -> AdapterFiles:
    """Raises AdapterUnavailable."""
    manifest = read_manifest(store, digest)
    with blobs_named():
        config, weights = _read(store, digest, CONFIG_FILE), _read(store, digest, WEIGHTS_FILE)
    check_digest(digest, hashlib.sha256(config).hexdigest(), hashlib.sha256(weights).hexdigest())
    return AdapterFiles(manifest, config, weights)


def check_digest(digest: str, config_sha256: str, weights_sha256: str) -> None:
    """Raises AdapterUnavailable."""
    if adapter_digest(config_sha256, weights_sha256) != digest:
        raise AdapterUnavailable("the adapter's files are corrupt: they do not have its digest")


@contextmanager
def blobs_named() -> Iterator[None]:
    """What goes wrong with blobs inside, as AdapterUnavailable."""
    try:
        yield
    except BlobNotFound as error:
        raise AdapterUnavailable("the adapter's files are no longer there") from error
    except BlobError as error:
        raise AdapterUnavailable("the adapter's files cannot be read", retryable=True) from error
    except msgspec.DecodeError as error:
        raise AdapterUnavailable("the adapter's manifest is corrupt") from error


def _read(store: BlobStore, digest: str, file: str) -> bytes:
    try:
        with store.open(blob_key(digest, file)) as blob:
            return blob.read()
    except OSError as error:
        raise AdapterUnavailable("the adapter's files cannot be read", retryable=True) from error
