"""One way to see what an upload holds, whatever it came in: a name, a size and a stream, in the order of the file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from tenora_adapters.errors import PackageRejected, PackageTooLarge

CHUNK_BYTES: Final = 1 << 18
_RATIO_FROM_BYTES: Final = 1 << 20


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Member:
    """An entry of an upload. `data` is readable until the next member is asked for; None for a folder."""

    path: str  # as the archive spells it; not trusted
    data: Stream | None


class Content(StrEnum):
    """What bytes are, by what they begin with and not by their name."""

    ZIP = "zip"
    GZIP = "gzip"
    TAR = "tar"
    PICKLE = "pickle"
    NUMPY = "numpy"
    OTHER = "other"


HEAD_BYTES: Final = 512  # what `sniff` wants to see


def sniff(head: bytes) -> Content:
    if head[8:9] == b"{":  # safetensors: its first 8 bytes are a number, and may look like anything
        return Content.OTHER
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Content.ZIP
    if head.startswith(b"\x1f\x8b"):
        return Content.GZIP
    if head.startswith(b"\x93NUMPY"):
        return Content.NUMPY
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:  # the opcode PROTO and its number
        return Content.PICKLE
    if head[257:262] == b"ustar":
        return Content.TAR
    return Content.OTHER


class GuardedStream:
    """`source`, whose library's errors become PackageRejected wherever the reading happens."""

    def __init__(self, source: Stream, what: str, errors: tuple[type[Exception], ...]) -> None:
        self._source = source
        self._what = what
        self._errors = errors

    def read(self, size: int, /) -> bytes:
        try:
            return self._source.read(size)
        except self._errors as error:
            raise PackageRejected(f"the {self._what} is damaged: {error}") from error


class CappedStream:
    """`source`, with an end to how much may come out of it: in all, and against the `packed` bytes that went in."""

    def __init__(self, source: Stream, *, max_bytes: int, packed: int, max_ratio: int) -> None:
        self._source = source
        self._left = max(0, min(max_bytes, max(_RATIO_FROM_BYTES, packed * max_ratio)))

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, b"" at the end. Raises PackageTooLarge once the cap is passed."""
        chunk = self._source.read(min(size, CHUNK_BYTES))
        self._left -= len(chunk)
        if self._left < 0:
            raise PackageTooLarge("the upload unpacks to more than is allowed")
        return chunk
