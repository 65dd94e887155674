"""Receive a multipart upload into a folder of our own, within bounds, while it streams in.

What the client calls its files decides nothing about where they lie: they are `part-0`, `part-1` ... The folder is
gone when the block ends, whatever happened.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from tenora_platform.control.errors import InvalidRequest, Timeout, TooLarge, TooManyRequests

FILE_FIELD: Final = "files"
MAX_PARTS: Final = 8
MAX_FIELD_BYTES: Final = 1024
MAX_SECONDS: Final = 900.0
MAX_AT_ONCE: Final = 64  # bodies that this process takes in: a bound on what its disk has to hold
MAX_AT_ONCE_PER_TENANT: Final = 16
_FORBIDDEN_IN_NAMES: Final = ("/", "\\", "%2f", "%5c", "%00")


@dataclass(frozen=True)
class ReceivedFile:
    filename: str  # as the client calls it: a hint of its kind and nothing more
    path: Path


@dataclass(frozen=True)
class Upload:
    folder: Path  # of this request alone, and gone with it
    fields: dict[str, str]
    files: list[ReceivedFile]


_now_receiving: Counter[uuid.UUID] = Counter()  # by tenant; touched by the event loop's thread alone


@contextmanager
def receiving(tenant_id: uuid.UUID) -> Iterator[None]:
    """Raises TooManyRequests."""
    if _now_receiving.total() >= MAX_AT_ONCE or _now_receiving[tenant_id] >= MAX_AT_ONCE_PER_TENANT:
        message = "Too much is being uploaded at once. Try again in a moment."
        raise TooManyRequests(message, code="too_many_uploads", retry_after=5)
    _now_receiving[tenant_id] += 1
    try:
        yield
    finally:
        _now_receiving[tenant_id] -= 1
        if not _now_receiving[tenant_id]:
            del _now_receiving[tenant_id]


async def receive_bytes(request: Request, path: Path, max_bytes: int) -> None:
    """The body into a new file; what has arrived of it when the client goes away, or takes too long.

    Raises InvalidRequest, TooLarge.
    """
    _check_encoding(request)
    received = 0
    with path.open("xb") as file, suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(MAX_SECONDS):
            async for chunk in request.stream():
                received += len(chunk)
                if received > max_bytes:
                    raise TooLarge(f"A chunk may have at most {max_bytes} bytes.")
                await run_in_threadpool(file.write, chunk)


@asynccontextmanager
async def receive_upload(request: Request, max_bytes: int) -> AsyncIterator[Upload]:
    """The fields and files of a multipart request of at most `max_bytes`, counted as they come.

    Raises InvalidRequest, TooLarge, Timeout.
    """
    boundary = _boundary(request)
    with tempfile.TemporaryDirectory(prefix="tenora-upload-", ignore_cleanup_errors=True) as folder:
        try:
            parts = _Parts(Path(folder), boundary)
        except FormParserError as error:
            raise InvalidRequest("The boundary of the multipart body is too long.") from error
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await _feed(request, parts, max_bytes)
        except TimeoutError as error:
            raise Timeout(f"The upload took longer than {MAX_SECONDS:.0f} seconds.") from error
        except ClientDisconnect as error:
            raise InvalidRequest("The upload was cut off.") from error
        except FormParserError as error:
            raise InvalidRequest("The body is not well-formed multipart/form-data.") from error
        finally:
            parts.close()
        if not parts.complete:
            raise InvalidRequest("The upload was cut off.")
        yield Upload(folder=Path(folder), fields=parts.fields, files=parts.files)


async def _feed(request: Request, parts: _Parts, max_bytes: int) -> None:
    declared = request.headers.get("content-length", "")
    received = 0
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise TooLarge(f"An upload may have at most {max_bytes} bytes.")
    async for chunk in request.stream():
        received += len(chunk)
        if received > max_bytes:
            raise TooLarge(f"An upload may have at most {max_bytes} bytes.")
        await run_in_threadpool(parts.write, chunk)  # the disk may be slow, and others share this loop


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InvalidRequest("Send multipart/form-data.")
    _check_encoding(request)
    return options[b"boundary"]


def _check_encoding(request: Request) -> None:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequest("Send the body without a content encoding.")


@dataclass
class _Part:
    header: dict[bytes, bytes] = field(default_factory=dict)
    header_name: bytes = b""
    header_value: bytes = b""
    name: str = ""
    text: bytes = b""
    file: BinaryIO | None = None


class _Parts:
    """What the multipart parser calls as it finds things. Everything it keeps in memory is bounded."""

    def __init__(self, folder: Path, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.files: list[ReceivedFile] = []
        self.complete = False
        self._folder = folder
        self._part = _Part()
        self._count = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._all,
            },
        )

    def write(self, chunk: bytes) -> None:
        self._parser.write(chunk)

    def close(self) -> None:
        if self._part.file is not None:
            self._part.file.close()

    def _begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise InvalidRequest(f"An upload has at most {MAX_PARTS} parts.")
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._part.header_name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.header_value += data[start:end]

    def _header_end(self) -> None:
        self._part.header[self._part.header_name.lower()] = self._part.header_value
        self._part.header_name = self._part.header_value = b""

    def _headers_finished(self) -> None:
        disposition = self._part.header.get(b"content-disposition", b"")
        _, options = parse_options_header(disposition)
        self._part.name = _decode(options.get(b"name", b""))
        if b"filename" in options:
            if self._part.name != FILE_FIELD:
                raise InvalidRequest(f"Files belong in the field {FILE_FIELD!r}.", param=self._part.name[:100])
            # The whole header, as the parser would cut a Windows path down to its last part.
            if b"\\" in disposition:
                raise _bad_filename()
            filename = _checked(_decode(options[b"filename"]))
            path = self._folder / f"part-{self._count}"
            self._part.file = path.open("xb")
            self.files.append(ReceivedFile(filename, path))
        elif self._part.name in self.fields:
            raise InvalidRequest("A field is there twice.", param=self._part.name)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.file is not None:
            self._part.file.write(data[start:end])
            return
        self._part.text += data[start:end]
        if len(self._part.text) > MAX_FIELD_BYTES:
            raise InvalidRequest("A field is too long.", param=self._part.name[:100])

    def _end(self) -> None:
        if self._part.file is not None:
            self._part.file.close()
        else:
            self.fields[self._part.name] = _decode(self._part.text)

    def _all(self) -> None:
        self.complete = True


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("Names and fields must be UTF-8.") from error


def is_plain_name(filename: str) -> bool:
    lowered = filename.lower()
    return (
        filename.isprintable()
        and filename not in ("", ".", "..")
        and not any(bad in lowered for bad in _FORBIDDEN_IN_NAMES)
    )


def _checked(filename: str) -> str:
    if not is_plain_name(filename):
        raise _bad_filename()
    return filename


def _bad_filename() -> InvalidRequest:
    message = "A file's name must be a plain name, without a path."
    return InvalidRequest(message, code="bad_filename", param="files")
