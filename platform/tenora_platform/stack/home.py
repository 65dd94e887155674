"""The data folder (`TENORA_HOME`): where everything of one embedded platform lives, and its secrets.

secrets.json   made at the first start, readable by its owner alone
ports.json     the ports of the inner parts, kept so that a restart finds the same ones
postgres/ valkey/ blobs/ spool/ models/   the data
run/           lock, state, sockets: of no use once the platform is down
logs/          one file per part
demo.json      what `tenora demo` made, for scripts to go on from
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tenora_platform.stack.part import StackError
from tenora_platform.stack.ports import free_port, port_is_free

_MIN_FREE_BYTES: Final = 1 << 30
_MAX_SOCKET_PATH: Final = 90  # the kernel's limit is 107, minus a file name


class Secrets(msgspec.Struct, frozen=True):
    """Random, made once. Nothing here is ever logged."""

    platform: str
    postgres: str
    postgres_superuser: str
    valkey: str
    admin_password: str


class Ports(msgspec.Struct, frozen=True):
    postgres: int
    valkey: int


@dataclass(frozen=True)
class Home:
    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def demo_file(self) -> Path:
        return self.root / "demo.json"

    @property
    def secrets_file(self) -> Path:
        return self.root / "secrets.json"

    def prepare(self) -> None:
        """Make the folders. Raises StackError when the disk is full or the folder cannot be written."""
        try:
            for folder in (self.root, self.logs, self.run):
                folder.mkdir(parents=True, exist_ok=True)
            for name in ("blobs", "spool", "models"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            raise StackError(f"cannot use the data folder {self.root}: {error.strerror}") from error
        if free < _MIN_FREE_BYTES:
            raise StackError(
                f"only {free >> 20} MiB are free at {self.root}; 1 GiB is needed. "
                "Make room, or point TENORA_HOME at another disk."
            )

    def secrets(self) -> Secrets:
        """The platform's secrets, made at the first call."""
        if not self.secrets_file.exists():
            made = Secrets(
                platform=secrets.token_urlsafe(32),
                postgres=secrets.token_urlsafe(32),
                postgres_superuser=secrets.token_urlsafe(32),
                valkey=secrets.token_urlsafe(32),
                admin_password=secrets.token_urlsafe(12),
            )
            write_private(self.secrets_file, msgspec.json.format(msgspec.json.encode(made)))
        return _read(self.secrets_file, Secrets)

    def ports(self) -> Ports:
        """The inner parts' ports: those of the last start where they are free, else new ones."""
        file = self.root / "ports.json"
        kept = _read(file, Ports) if file.exists() else None
        if kept is None or not (port_is_free(kept.postgres) and port_is_free(kept.valkey)):
            kept = Ports(postgres=free_port(), valkey=free_port())
            write_private(file, msgspec.json.encode(kept))
        return kept

    def socket_folder(self) -> Path:
        """A folder for Unix sockets that nobody else can enter, with a path short enough for the kernel."""
        folder = self.run / "sockets"
        if len(os.fsencode(folder)) > _MAX_SOCKET_PATH:
            name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
            folder = Path(tempfile.gettempdir()) / f"tenora-{os.getuid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
            raise StackError(f"{folder} is not a private folder of this user")
        return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)  # NamedTemporaryFile made it 0600


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise StackError(f"{path} cannot be read: {error}. Restore it, or start with another TENORA_HOME.") from error
