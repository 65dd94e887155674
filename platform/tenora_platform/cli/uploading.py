"""Sending an adapter in chunks: it goes on where it was after a connection was cut, or after the command was."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tenora_adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from tenora_platform.cli.client import ApiError, ControlClient, Unreachable
from tenora_platform.cli.terminal import CommandError

CHUNK_BYTES: Final = 4 * 2**20
# A connection that is gone for longer than all these together ends the command; the same command goes on later.
PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
VALIDATION_TIMEOUT_S: Final = 300.0
_AGAIN: Final = frozenset({"busy", "wrong_offset", "unavailable", "too_many_uploads"})

OnProgress = Callable[[int], None]  # bytes that have arrived


def files_of(path: Path) -> list[Path]:
    """The files to send: of a folder the two that make an adapter, else the archive itself. Raises CommandError."""
    if not path.is_dir():
        return [path]
    files = [path / CONFIG_FILE, path / WEIGHTS_FILE]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CommandError(f"{path} holds no {' and no '.join(missing)}; that is what PEFT's save_pretrained writes")
    return files


def send(
    control: ControlClient, tenant_id: str, files: list[Path], wanted: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any]:
    """The new version, with its adapter: `{"adapter", "version"}`. Raises CommandError, ApiError."""
    collection = f"/tenants/{tenant_id}/uploads"
    announced = [{"filename": file.name, "size": file.stat().st_size, "sha256": _sha256(file)} for file in files]
    upload = _retried(
        lambda: (
            _unfinished(control, collection, wanted, announced)
            or control.post(collection, json=wanted | {"files": announced})
        )
    )
    url = f"{collection}/{upload['id']}"
    on_progress(upload["offset"])
    while upload["status"] == "receiving" and upload["offset"] < upload["size"]:
        upload = _send_next(control, url, upload, files)
        on_progress(upload["offset"])
    finished: dict[str, Any] = _retried(lambda: control.post(f"{url}/finish", timeout=VALIDATION_TIMEOUT_S))
    return finished


def wait_until_checked(control: ControlClient, tenant_id: str, accepted: dict[str, Any]) -> dict[str, Any]:
    """The version, ready or rejected. Raises CommandError."""
    version, adapter = accepted["version"], accepted["adapter"]
    url = f"/tenants/{tenant_id}/adapters/{adapter['id']}/versions/{version['id']}"
    deadline = time.monotonic() + VALIDATION_TIMEOUT_S
    while version["status"] == "validating":
        if time.monotonic() > deadline:
            raise CommandError(f"validation takes unusually long; is the worker up? tenora status. Version: {url}")
        time.sleep(0.2)
        version = _retried(lambda: control.get(url))
    return {**version, "model": adapter["model"]}


def _unfinished(
    control: ControlClient, collection: str, wanted: dict[str, Any], announced: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """An upload of the very same files that an earlier command began and that is to become the very same version."""
    for upload in control.items(collection):
        same = upload["files"] == announced and all(upload[key] == value for key, value in wanted.items())
        if same and upload["status"] == "receiving":
            return upload
    return None


def _send_next(control: ControlClient, url: str, upload: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    """One chunk. After a connection that was cut, the server says how much of it has arrived."""
    lost = False

    def attempt() -> dict[str, Any]:
        nonlocal upload, lost
        if lost:
            upload = control.get(url)
        lost = True
        if upload["offset"] == upload["size"] or upload["status"] != "receiving":
            return upload
        chunk = _read(files, upload["offset"], min(CHUNK_BYTES, upload["max_chunk_bytes"]))
        headers = {"Upload-Offset": str(upload["offset"]), "Content-Type": "application/octet-stream"}
        upload = control.request("PATCH", url, content=chunk, headers=headers)
        return upload

    sent: dict[str, Any] = _retried(attempt)
    return sent


def _retried(call: Callable[[], Any]) -> Any:
    for pause in (*PAUSES_S, None):
        try:
            return call()
        except Unreachable:
            if pause is None:
                raise
        except ApiError as error:
            if pause is None or error.code not in _AGAIN:
                raise
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _read(files: list[Path], offset: int, size: int) -> bytes:
    """Up to `size` bytes from `offset` on in the files, one after another."""
    return b"".join(_parts(files, offset, size))


def _parts(files: list[Path], offset: int, size: int) -> Iterator[bytes]:
    for path in files:
        length = path.stat().st_size
        if offset < length and size:
            with path.open("rb") as file:
                file.seek(offset)
                part = file.read(size)
            size -= len(part)
            yield part
        offset = max(offset - length, 0)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
