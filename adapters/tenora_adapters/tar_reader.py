"""Members of a tar, by a reader of our own: plain files and folders, and nothing else that the format can express.

Standard readers honour links, devices, sparse maps and names in extended headers, each of which has been an escape.
Here an extended header may hold times and owners; one that renames, links or resizes refuses the upload.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tenora_adapters.errors import PackageRejected, PackageTooLarge
from tenora_adapters.limits import Limits
from tenora_adapters.members import CHUNK_BYTES, Member, Stream

_BLOCK: Final = 512
_FILES: Final = (b"0", b"\0")
_FOLDER: Final = b"5"
_EXTENDED: Final = (b"x", b"g")
_MAX_EXTENDED_BYTES: Final = 64 << 10
_HARMLESS_KEY: Final = re.compile(
    rb"(atime|ctime|mtime|uid|gid|uname|gname|comment|charset|hdrcharset|LIBARCHIVE\.[\w.-]+|SCHILY\.[\w.-]+)"
)
_OCTAL: Final = re.compile(rb" *([0-7]{1,11})[ \0]*")


def tar_members(stream: Stream, limits: Limits) -> Iterator[Member]:
    """Files and folders of the tar in `stream` (unpacked, capped). Raises PackageRejected, PackageTooLarge."""
    count = 0
    while (block := _read_exactly(stream, _BLOCK)).strip(b"\0"):
        count += 1
        if count > limits.max_members:
            raise PackageTooLarge(f"the tar has more than {limits.max_members} members", code="too_many_members")
        path, kind, size = _header(block)
        if kind in _EXTENDED:
            _check_extended(stream, size)
            continue
        if kind == _FOLDER:
            if path.rstrip("/") != ".":
                yield Member(path.rstrip("/"), None)
            continue
        if kind not in _FILES:
            raise PackageRejected("only plain files are read from a tar", param=path[:80], code="not_a_plain_file")
        data = _Bounded(stream, size)
        yield Member(path, data)
        data.skip()
        _read_exactly(stream, -size % _BLOCK)


class _Bounded:
    """The next `size` bytes of `stream`."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int, /) -> bytes:
        chunk = self._stream.read(min(size, self._left))
        if not chunk and self._left and size:
            raise _damaged("it ends in the middle of a member")
        self._left -= len(chunk)
        return chunk

    def skip(self) -> None:
        while self.read(CHUNK_BYTES):
            pass


def _header(block: bytes) -> tuple[str, bytes, int]:
    """(path, kind, size)"""
    unsummed = block[:148] + b" " * 8 + block[156:]
    if _number(block[148:156]) != sum(unsummed):
        raise _damaged("a checksum is wrong")
    try:
        path = block[:100].rstrip(b"\0").decode("utf-8")
        if block[257:263] == b"ustar\0" and (prefix := block[345:500].rstrip(b"\0")):
            path = f"{prefix.decode('utf-8')}/{path}"
    except UnicodeDecodeError as error:
        raise _damaged("a name is not UTF-8") from error
    if _number(block[100:108]) & 0o6000:
        raise PackageRejected("setuid and setgid files are refused", param=path[:80], code="not_a_plain_file")
    return path, block[156:157], _number(block[124:136])


def _number(field: bytes) -> int:
    found = _OCTAL.fullmatch(field.replace(b"\0", b" "))
    if not found:
        raise _damaged("a number is malformed")
    return int(found[1], 8)


def _check_extended(stream: Stream, size: int) -> None:
    """Records of the form "LENGTH KEY=VALUE LF"."""
    if size > _MAX_EXTENDED_BYTES:
        raise PackageTooLarge("an extended header of the tar is too large")
    text = _read_exactly(stream, size)
    _read_exactly(stream, -size % _BLOCK)
    while text:
        length, _, rest = text.partition(b" ")
        if not length.isdigit() or len(length) > 5 or not len(length) + 1 < int(length) <= len(text):
            raise _damaged("an extended header is malformed")
        key, _, _ = rest.partition(b"=")
        if not _HARMLESS_KEY.fullmatch(key):
            name = key[:40].decode("ascii", "replace")
            raise PackageRejected(f"the tar uses the extended header {name!r}, which is not read", code="unsafe_name")
        text = text[int(length) :]


def _read_exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = stream.read(size - len(data))
        if not chunk:
            raise _damaged("it ends too early")
        data += chunk
    return data


def _damaged(why: str) -> PackageRejected:
    return PackageRejected(f"the tar is damaged: {why}")
