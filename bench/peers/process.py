"""Running a peer: its virtual environment, and its process from start to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

STOP_S = 20.0


class PeerError(Exception):
    """A peer could not be installed or started."""


def environment_with(folder: Path, packages: Sequence[str], settings: Mapping[str, str] | None = None) -> Path:
    """A virtual environment that holds `packages`, made unless a stamp says that it was; its Python.

    settings: of the environment in which packages are built.
    """
    python, stamp = folder / "bin" / "python", folder / "packages"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    build = {**os.environ, **(settings or {})}
    for package in packages:
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--progress-bar", "on", *package.split()], check=True, env=build
        )
    stamp.write_text(wanted)
    return python


@contextmanager
def served(
    command: Sequence[str | Path], url: str, log: Path, environment: Mapping[str, str], timeout_s: float = 300.0
) -> Iterator[str]:
    """Run a server in a process group of its own until the `with` block ends; `url` once it lists its models.

    Raises PeerError, naming the log, when it ends or stays silent.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            _wait_until_served(process, url, log, timeout_s)
            yield url
        finally:
            _stop(process)


def _wait_until_served(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float) -> None:
    give_up = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            raise PeerError(f"it ended with status {process.returncode}; see {log}")
        if time.monotonic() > give_up:
            raise PeerError(f"it was not ready within {timeout_s:.0f} s; see {log}")
        try:
            if httpx.get(f"{url}/models", timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The process by its id, then whatever it left in the group that it leads."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
