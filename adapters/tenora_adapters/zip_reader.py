"""Members of a zip, one after the other, without trusting a word of its directory."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from tenora_adapters.errors import PackageRejected, PackageTooLarge
from tenora_adapters.limits import Limits
from tenora_adapters.members import CappedStream, GuardedStream, Member

_END: Final = b"PK\x05\x06"  # end of central directory record
_END_BYTES: Final = 22
_MAX_COMMENT_BYTES: Final = 0xFFFF
_ZIP64_LOCATOR: Final = b"PK\x06\x07"
_DIRECTORY_BYTES_PER_MEMBER: Final = 2048
_LOCAL_HEADER_BYTES: Final = 30
_ENCRYPTED: Final = 0x1
_UNIX: Final = 3
_MAX_WORDS: Final = 200  # of the library's, which may quote as much of the file as a length in it says
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, EOFError)


def zip_members(path: Path, limits: Limits) -> Iterator[Member]:
    """Files and folders of the zip at `path`. Raises PackageRejected or its child PackageTooLarge."""
    with path.open("rb") as file:
        _check_directory_size(file, limits)
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
                _check_directory(infos, archive.start_dir, limits)
                left = limits.max_unpacked_bytes
                for info in infos:
                    _check_member(info)
                    if info.is_dir():
                        yield Member(info.filename.rstrip("/"), None)
                        continue
                    left -= info.file_size
                    if left < 0:
                        raise PackageTooLarge("the upload unpacks to more than is allowed", param=info.filename[:80])
                    with archive.open(info) as data:
                        capped = CappedStream(
                            data, max_bytes=info.file_size, packed=info.compress_size, max_ratio=limits.max_ratio
                        )
                        yield Member(info.filename, GuardedStream(capped, "zip", _DAMAGED))
        except (*_DAMAGED, NotImplementedError, UnicodeDecodeError) as error:
            words = str(error)[:_MAX_WORDS]
            raise PackageRejected(f"the zip is damaged or of a kind that is not read: {words}") from error


def _check_directory_size(file: BinaryIO, limits: Limits) -> None:
    """The library reads the whole directory at once: look at what the end record claims first."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_BYTES - _MAX_COMMENT_BYTES))
    tail = file.read()
    at = tail.rfind(_END)
    record = tail[at : at + _END_BYTES]
    if at < 0 or len(record) < _END_BYTES or len(tail) - at - _END_BYTES != int.from_bytes(record[20:22], "little"):
        raise PackageRejected("the zip has no proper end")
    if tail[max(0, at - 20) : at].startswith(_ZIP64_LOCATOR):
        raise PackageRejected("zip64 is not read")
    if int.from_bytes(record[10:12], "little") > limits.max_members:
        raise _too_many(limits)
    if int.from_bytes(record[12:16], "little") > limits.max_members * _DIRECTORY_BYTES_PER_MEMBER:
        raise PackageTooLarge("the zip's directory is too large")
    file.seek(0)


def _check_directory(infos: list[zipfile.ZipInfo], directory_at: int, limits: Limits) -> None:
    if len(infos) > limits.max_members:
        raise _too_many(limits)
    ordered = sorted(infos, key=lambda info: info.header_offset)
    starts = [*(info.header_offset for info in ordered), directory_at]
    for info, next_start in zip(ordered, starts[1:], strict=True):
        end = info.header_offset + _LOCAL_HEADER_BYTES + len(info.orig_filename) + info.compress_size
        if info.header_offset < 0 or end > next_start:
            raise PackageRejected("members of the zip overlap", param=info.filename[:80])


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.filename[:80]
    if info.orig_filename != info.filename:
        raise PackageRejected("a member's name holds a NUL", param=name, code="unsafe_name")
    if not name:  # of which the library cannot say whether it is a folder
        raise PackageRejected("a member has no name", code="unsafe_name")
    if info.flag_bits & _ENCRYPTED:
        raise PackageRejected("encrypted zips are not read", param=name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageRejected("only stored and deflated members are read", param=name)
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR) or mode & (stat.S_ISUID | stat.S_ISGID):
        raise PackageRejected("only plain files are read from a zip", param=name, code="not_a_plain_file")


def _too_many(limits: Limits) -> PackageTooLarge:
    return PackageTooLarge(f"the zip has more than {limits.max_members} members", code="too_many_members")
