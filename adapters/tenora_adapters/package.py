"""From what was uploaded to two staged files: a folder, a zip, a tar (also gzipped), or the two files themselves.

Only `adapter_config.json` and `adapter_model.safetensors` are ever written, under those names, in the caller's staging
folder. What usually lies beside them (a README, the tokenizer) is skipped unread; anything else refuses the upload.
Bytes are judged by what they are, never by their name alone, and nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenora_adapters.errors import FormatUnsupported, PackageRejected, PackageTooLarge
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from tenora_adapters.members import (
    CHUNK_BYTES,
    HEAD_BYTES,
    CappedStream,
    Content,
    GuardedStream,
    Member,
    Stream,
    sniff,
)
from tenora_adapters.tar_reader import tar_members
from tenora_adapters.zip_reader import zip_members

_PART: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_. +-]*")
_MAX_PATH_CHARS: Final = 240
_MAX_DEPTH: Final = 4
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npz", ".npy", ".joblib")
_BYSTANDERS: Final = re.compile(
    r"(readme|license|licence|notice|\.gitattributes|\.gitignore|\.ds_store)(\.\w+)?"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|generation_config|trainer_state|config"
    r"|all_results|train_results|eval_results)\.json"
    r"|merges\.txt|vocab\.txt|tokenizer\.model|chat_template\.(jinja|json)|\._.*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class UploadedFile:
    path: Path  # where its bytes lie now
    filename: str  # as the sender calls it; not trusted


@dataclass(frozen=True)
class StagedFiles:
    config: Path
    weights: Path


def open_upload(path: Path, filename: str, staging: Path, limits: Limits = DEFAULT_LIMITS) -> StagedFiles:
    """Read one upload (an archive, or a folder of this machine) into `staging`, an existing folder of the caller's.

    Raises a child of PackageRejected; what was staged until then is removed.
    """
    if path.is_dir() and not path.is_symlink():
        return _stage(_folder_members(path, limits), staging, limits)
    return open_files([UploadedFile(path, filename)], staging, limits)


def open_files(files: Sequence[UploadedFile], staging: Path, limits: Limits = DEFAULT_LIMITS) -> StagedFiles:
    """Read an upload of one archive, or of the config and the weights as two files. Otherwise as `open_upload`."""
    if sum(file.path.stat().st_size for file in files) > limits.max_upload_bytes:
        raise PackageTooLarge(f"an upload has at most {limits.max_upload_bytes} bytes")
    if len(files) == 1:
        with files[0].path.open("rb") as data:
            kind = sniff(data.read(HEAD_BYTES))
        if kind is Content.ZIP:
            return _stage(zip_members(files[0].path, limits), staging, limits)
        if kind in (Content.TAR, Content.GZIP):
            return _stage(_tar_members(files[0].path, kind, limits), staging, limits)
        if Path(files[0].filename).name not in (CONFIG_FILE, WEIGHTS_FILE):
            _refuse_pickle(files[0].filename, kind)
            raise FormatUnsupported(
                f"send a zip or tar of the adapter, or {CONFIG_FILE} and {WEIGHTS_FILE}", param=files[0].filename[:80]
            )
    return _stage(_plain_members(files, limits), staging, limits)


def _stage(members: Iterable[Member], staging: Path, limits: Limits) -> StagedFiles:
    staged = StagedFiles(staging / CONFIG_FILE, staging / WEIGHTS_FILE)
    try:
        _take(members, staged, limits)
    except BaseException:
        staged.config.unlink(missing_ok=True)
        staged.weights.unlink(missing_ok=True)
        raise
    return staged


def _take(members: Iterable[Member], staged: StagedFiles, limits: Limits) -> None:
    seen: set[str] = set()
    folders: dict[str, str] = {}  # of each wanted file
    for member in members:
        folder, name = _checked_path(member.path)
        if member.data is None:
            continue
        folded = f"{folder}/{name}".casefold()
        if folded in seen:
            raise PackageRejected("two members have the same name", param=member.path[:80], code="duplicate_member")
        seen.add(folded)
        if name in (CONFIG_FILE, WEIGHTS_FILE):
            if name in folders:
                raise PackageRejected(f"the upload holds {name} twice", param=member.path[:80], code="duplicate_member")
            folders[name] = folder
            if name == CONFIG_FILE:
                _write(member.path, member.data, staged.config, limits.max_config_bytes)
            else:
                _write(member.path, member.data, staged.weights, limits.max_unpacked_bytes)
        elif not (_BYSTANDERS.fullmatch(name) or folder.startswith("__MACOSX")):
            _refuse_pickle(name, Content.OTHER)
            raise PackageRejected(
                f"an adapter is {CONFIG_FILE} and {WEIGHTS_FILE}; leave {name!r} out",
                param=member.path[:80],
                code="unexpected_member",
            )
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in folders:
            raise PackageRejected(f"the upload holds no {name}", param=name, code="missing_file")
    if len(set(folders.values())) > 1:
        raise PackageRejected("config and weights lie in different folders", code="invalid_package")


def _checked_path(path: str) -> tuple[str, str]:
    """(folder, name) of a member's path, or PackageRejected when it could mean anything but a place below the top."""
    parts = path.removeprefix("./").split("/")
    safe = all(_PART.fullmatch(part) and part.strip(". ") for part in parts)
    if not safe or len(parts) > _MAX_DEPTH or len(path) > _MAX_PATH_CHARS:
        shown = path[:80].encode("ascii", "backslashreplace").decode()
        raise PackageRejected(f"the name {shown!r} is not allowed", param=shown, code="unsafe_name")
    return "/".join(parts[:-1]), parts[-1]


def _write(path: str, data: Stream, target: Path, max_bytes: int) -> None:
    head = data.read(HEAD_BYTES)
    kind = sniff(head)
    _refuse_pickle(path, kind)
    if kind is not Content.OTHER:
        raise FormatUnsupported(f"{target.name} is a {kind} in truth", param=path[:80])
    written = 0
    with target.open("xb") as file:
        while head:
            written += len(head)
            if written > max_bytes:
                raise PackageTooLarge(f"{target.name} has more than {max_bytes} bytes", param=target.name)
            file.write(head)
            head = data.read(CHUNK_BYTES)


def _refuse_pickle(name: str, kind: Content) -> None:
    """By content, or by a name that says it: never opened to make sure."""
    if kind in (Content.PICKLE, Content.NUMPY) or name.lower().endswith(_PICKLES):
        raise FormatUnsupported(
            f"{name[:80]!r} is a pickle or may hold one: only safetensors are accepted. "
            "Save the adapter with save_pretrained(..., safe_serialization=True)",
            param=name[:80],
            code="pickle_refused",
        )


def _plain_members(files: Sequence[UploadedFile], limits: Limits) -> Iterator[Member]:
    if len(files) > limits.max_members:
        raise PackageTooLarge(f"an upload has at most {limits.max_members} files", code="too_many_members")
    for file in files:
        with file.path.open("rb") as data:
            yield Member(file.filename, data)


def _folder_members(folder: Path, limits: Limits) -> Iterator[Member]:
    """Files directly in `folder`; links and special files refuse it, folders below are not looked into."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if len(found) > limits.max_members:
        raise PackageTooLarge(f"a folder has at most {limits.max_members} entries", code="too_many_members")
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            continue
        if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            raise PackageRejected("only plain files are read", param=entry.name[:80], code="not_a_plain_file")
        with open(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as data:
            yield Member(entry.name, data)


def _tar_members(path: Path, kind: Content, limits: Limits) -> Iterator[Member]:
    packed = path.stat().st_size
    with path.open("rb") as file:
        stream: Stream = file
        if kind is Content.GZIP:
            unzipped = gzip.GzipFile(fileobj=file)
            stream = GuardedStream(unzipped, "gzip", (gzip.BadGzipFile, zlib.error, EOFError))
        capped = CappedStream(stream, max_bytes=limits.max_unpacked_bytes, packed=packed, max_ratio=limits.max_ratio)
        yield from tar_members(capped, limits)
