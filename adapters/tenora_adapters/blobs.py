"""Where adapters and exports are kept: a port, a folder behind it, and in `s3_store` a bucket.

    BlobError
    +-- BlobNotFound      the key does not exist
    +-- BlobUnavailable   the store could not be reached, or refused (disk full)

Keys are server-made (`adapters/<digest>/<file>`, `exports/<id>/<file>`), checked all the same.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit


class BlobError(Exception):
    """A blob could not be read or written."""


class BlobNotFound(BlobError):
    """No blob has this key."""


class BlobUnavailable(BlobError):
    """The store failed. Worth another try."""


class BlobStore(Protocol):
    def put(self, key: str, source: BinaryIO) -> int:
        """Store all of `source` under `key` atomically, replacing what was there; bytes written."""

    def open(self, key: str) -> BinaryIO:
        """A readable, seekable file. Raises BlobNotFound."""

    def keys(self, folder: str) -> list[str]:
        """Of all blobs below `folder`, a key without its last parts; in order."""

    def delete(self, key: str) -> None:
        """Remove `key`; no error when it is not there."""

    def sweep(self, before: datetime) -> int:
        """Remove what killed processes left of their puts; how many these were. One that may still go on must have
        begun, or in a folder grown, after `before`, which has a time zone."""


_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

_PART: Final = ".put-"  # begins the name of a file on its way, which no key has


def checked_key(key: str) -> str:
    """Raises BlobError."""
    if not _KEY.fullmatch(key):
        raise BlobError(f"not a blob key: {key!r}")
    return key


class FolderStore:
    """Blobs as files below `root`. A blob appears whole (temporary file, fsync, rename) or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, source: BinaryIO) -> int:
        path = self._path(key)
        try:
            with _temporary(path.parent) as (file, name):
                shutil.copyfileobj(source, file, 1 << 20)
                size = file.tell()
                file.flush()
                os.fsync(file.fileno())
                os.replace(name, path)
        except OSError as error:
            raise BlobUnavailable(f"cannot write {key}: {error.strerror}") from error
        return size

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except FileNotFoundError as error:
            raise BlobNotFound(key) from error
        except OSError as error:
            raise BlobUnavailable(f"cannot read {key}: {error.strerror}") from error

    def keys(self, folder: str) -> list[str]:
        found = (path for path in self._path(folder).rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise BlobUnavailable(f"cannot delete {key}: {error.strerror}") from error
        with suppress(OSError):  # other blobs are in it
            path.parent.rmdir()

    def sweep(self, before: datetime) -> int:
        num_removed = 0
        try:
            for path in self.root.rglob(f"{_PART}*"):
                with suppress(FileNotFoundError):  # its put has just ended
                    if path.stat().st_mtime < before.timestamp():
                        path.unlink()
                        num_removed += 1
        except OSError as error:
            raise BlobUnavailable(f"cannot sweep {self.root}: {error.strerror}") from error
        return num_removed

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[BinaryIO, str]]:
    file = _new_file(folder)
    try:
        with file:
            yield file, file.name  # type: ignore[misc]  # the wrapper behaves as a BinaryIO
    finally:
        Path(file.name).unlink(missing_ok=True)


def _new_file(folder: Path) -> tempfile._TemporaryFileWrapper[bytes]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a delete has removed the folder, which was empty, in between
            return tempfile.NamedTemporaryFile(dir=folder, prefix=_PART, delete=False)


def open_store(url: str) -> BlobStore:
    """The store behind `url`: `file:///folder`, a plain absolute path, or `s3://bucket/prefix` (see `s3_store`).

    Raises BlobError for any other, and where what it needs is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return FolderStore(Path(unquote(parts.path)))
    if not parts.scheme and url.startswith("/"):
        return FolderStore(Path(url))
    if parts.scheme == "s3":
        try:
            from tenora_adapters.s3_store import S3Store
        except ModuleNotFoundError as error:
            raise BlobError(f"{error.name} is not installed: pip install 'tenora[s3]'") from error
        return S3Store(parts)
    raise BlobError(f"unsupported blob store: {parts.scheme or url!r}")
