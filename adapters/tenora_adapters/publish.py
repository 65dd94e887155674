"""Putting a validated adapter into the blob store: the manifest last, so that its presence means that all is there."""

from __future__ import annotations

import io

import msgspec

from tenora_adapters.blobs import BlobNotFound, BlobStore
from tenora_adapters.errors import BaseRejected
from tenora_adapters.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    WEIGHTS_FILE,
    Manifest,
    blob_key,
    decode_manifest,
    encode_manifest,
)
from tenora_adapters.validate import Validated


def publish(store: BlobStore, validated: Validated) -> None:
    """Write the three blobs; writing the same adapter again changes nothing. Raises BlobError.

    Raises BaseRejected when the very same files are already stored for another base model: the digest does not hold
    the base, and one digest has one manifest.
    """
    manifest = validated.manifest
    stored = _stored(store, manifest.digest)
    if stored is not None and not validated.base.is_known_as(stored.base_fingerprint):
        raise BaseRejected("the same files are already stored as an adapter of another base model")
    with validated.weights.open("rb") as weights:
        store.put(blob_key(manifest.digest, WEIGHTS_FILE), weights)
    store.put(blob_key(manifest.digest, CONFIG_FILE), io.BytesIO(validated.config_bytes))
    store.put(blob_key(manifest.digest, MANIFEST_FILE), io.BytesIO(encode_manifest(manifest)))


def read_manifest(store: BlobStore, digest: str) -> Manifest:
    """The manifest of a published adapter. Raises BlobError (BlobNotFound), msgspec.DecodeError."""
    with store.open(blob_key(digest, MANIFEST_FILE)) as file:
        return decode_manifest(file.read())


def unpublish(store: BlobStore, digest: str) -> None:
    """Remove an adapter's blobs, the manifest first; what is not there is no error. Raises BlobError."""
    folder = blob_key(digest, "")[:-1]
    store.delete(blob_key(digest, MANIFEST_FILE))
    for key in store.keys(folder):
        store.delete(key)


def _stored(store: BlobStore, digest: str) -> Manifest | None:
    try:
        return read_manifest(store, digest)
    except (BlobNotFound, msgspec.DecodeError):  # a damaged manifest is written again
        return None
