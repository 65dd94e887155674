"""Adapters' files on this machine's disk, by digest, shared by the engines that name the same folder.

    <folder>/adapters/<digest>/   one adapter, whole and verified: it appears by a rename
    <folder>/fill-<digest>/       on its way; whoever holds its lock may remove what is left of another
    <folder>/gone-*               given up
    <folder>/locks/               held by `flock`, so that they end with their process

Every reading is verified again, so nothing is flushed to the disk: what a crash or a bad disk has damaged is thrown
away and fetched once more. Where the disk fails (full, read-only), adapters come straight from the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from tenora_adapters.blobs import BlobStore, FolderStore
from tenora_adapters.manifest import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, Manifest, blob_key
from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.files import AdapterFiles, blobs_named, check_digest, read_files, read_manifest

log = logging.getLogger(__name__)

_PIECE: Final = 1 << 20
_NUM_LOCK_DIGITS: Final = 2  # of a digest: so many hex digits choose its lock


class DiskCache:
    is_local = True

    def __init__(self, store: BlobStore, folder: Path, max_bytes: int) -> None:
        """Raises OSError when the folder cannot be made."""
        self._store = store
        self._local = FolderStore(folder)
        self._folder = folder
        self._adapters = folder / "adapters"
        self._max_bytes = max_bytes
        for made in (self._adapters, folder / "locks"):
            made.mkdir(parents=True, exist_ok=True)
        self._clear()

    def fetch(self, digest: str) -> Manifest:
        try:
            manifest = read_manifest(self._local, digest)
        except AdapterUnavailable:
            manifest = read_manifest(self._store, digest)
            self._fill(manifest)
        return manifest

    def read(self, digest: str) -> AdapterFiles:
        for _ in range(2):
            try:
                files = read_files(self._local, digest)
            except AdapterUnavailable as error:  # evicted by another engine, or damaged
                if (self._adapters / digest).exists():
                    log.warning("adapter %s in the disk cache: %s; it is fetched again", digest, error.message)
                    self._discard(digest)
                if not self._fill(read_manifest(self._store, digest)):
                    break
            else:
                self._touch(digest)
                return files
        return read_files(self._store, digest)

    def _fill(self, manifest: Manifest) -> bool:
        """Have the adapter here. Whether it is: a disk that fails is no adapter's fault. Raises AdapterUnavailable."""
        digest = manifest.digest
        if manifest.weights_bytes > self._max_bytes:
            return False
        try:
            with self._locked(digest[:_NUM_LOCK_DIGITS]):
                if (self._adapters / digest).exists():
                    return True  # another engine was faster
                with self._locked("room"):
                    self._make_room(manifest.weights_bytes)
                part = self._folder / f"fill-{digest}"
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                try:
                    self._copy(manifest, part)
                    part.rename(self._adapters / digest)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            log.warning("the disk cache cannot keep adapter %s: %s", digest, error)
            return False
        return True

    def _copy(self, manifest: Manifest, part: Path) -> None:
        """All files, checked on the way. Raises AdapterUnavailable and OSError."""
        limits = {CONFIG_FILE: None, WEIGHTS_FILE: manifest.weights_bytes, MANIFEST_FILE: None}
        sums = {}
        for name, limit in limits.items():
            with blobs_named(), self._store.open(blob_key(manifest.digest, name)) as blob:
                sums[name] = _copy_and_hash(blob, part / name, limit)
        check_digest(manifest.digest, sums[CONFIG_FILE], sums[WEIGHTS_FILE])

    def _clear(self) -> None:
        """What processes left behind that ended in the middle of something."""
        for gone in self._folder.glob("gone-*"):
            shutil.rmtree(gone, ignore_errors=True)
        for part in self._folder.glob("fill-*"):
            with suppress(BlockingIOError), self._locked(part.name[len("fill-") :][:_NUM_LOCK_DIGITS], wait=False):
                shutil.rmtree(part, ignore_errors=True)

    def _make_room(self, num_bytes: int) -> None:
        """Give up the longest unused adapters until so much fits below the cap."""
        sizes = {folder: _size(folder) for folder in [*self._adapters.iterdir(), *self._folder.glob("fill-*")]}
        excess = sum(sizes.values()) + num_bytes - self._max_bytes
        for folder in sorted(self._adapters.iterdir(), key=_modified):
            if excess <= 0:
                return
            self._discard(folder.name)
            excess -= sizes.get(folder, 0)

    def _discard(self, digest: str) -> None:
        """Whoever reads it finds it whole or not at all."""
        gone = Path(tempfile.mkdtemp(dir=self._folder, prefix="gone-"))
        with suppress(FileNotFoundError):  # somebody else was faster
            (self._adapters / digest).rename(gone / digest)
        shutil.rmtree(gone, ignore_errors=True)

    def _touch(self, digest: str) -> None:
        with suppress(OSError):  # evicted meanwhile, or a disk that can only be read
            os.utime(self._adapters / digest)

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Raises BlockingIOError when somebody else holds it and it is not to be waited for."""
        with (self._folder / "locks" / name).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield


def _copy_and_hash(source: BinaryIO, target: Path, limit: int | None) -> str:
    """SHA-256 of what was copied. Raises AdapterUnavailable where it is more than `limit` bytes."""
    hashed = hashlib.sha256()
    num_bytes = 0
    with target.open("wb") as file:
        while piece := source.read(_PIECE):
            num_bytes += len(piece)
            if limit is not None and num_bytes > limit:
                raise AdapterUnavailable("the adapter's files are corrupt: they are larger than its manifest says")
            hashed.update(piece)
            file.write(piece)
    return hashed.hexdigest()


def _size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0  # it has just gone


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
