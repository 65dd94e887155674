"""The whole platform on this machine for the length of a measurement, with data of its own that go when it goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tenora_adapters.base import BaseModel, read_base_model
from tenora_platform.bench.targets import Targets, TargetTenant
from tenora_platform.cli.adapters import upload_adapter
from tenora_platform.cli.client import ControlClient
from tenora_platform.settings import Settings
from tenora_platform.stack.home import Home
from tenora_platform.stack.launch import open_home, start_detached, stop
from tenora_platform.stack.part import StackError
from tenora_platform.stack.ports import free_port

WORK = Path(__file__).resolve().parent.parent / "build" / "bench"
BASE = "smollm2-135m"
LIMITS = {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000}  # counted, never reached
console = Console(stderr=True)


@dataclass(frozen=True)
class Platform:
    home: Home
    settings: Settings
    model: Path
    base: BaseModel

    @property
    def api(self) -> str:
        return f"http://{self.settings.host}:{self.settings.port}/v1"

    @property
    def engine_address(self) -> str:
        return f"ipc://{self.home.socket_folder() / 'engine-0.sock'}"

    @property
    def blobs(self) -> Path:
        return self.home.root / "blobs"

    def targets(self, tenants: Sequence[str], adapters: Sequence[Path] = ()) -> Targets:
        """New tenants with a key and limits each. With adapters, they are dealt out among them and asked for."""
        url, settings = f"http://{self.settings.host}:{self.settings.port}", self.settings
        with ControlClient(url, settings.admin_user, self.home.secrets().admin_password) as control:
            made = []
            for number, name in enumerate(tenants):
                row = control.post("/tenants", json={"name": name, "display_name": name, "timezone": "UTC"})
                control.put(f"/tenants/{row['id']}/quota", json=LIMITS)
                key = control.post(f"/tenants/{row['id']}/keys", json={"name": "bench"})
                mine = adapters[number :: len(tenants)]
                models = [
                    upload_adapter(control, path, row["id"], path.name, confirm_base=True)["model"] for path in mine
                ]
                made.append(TargetTenant(name, models or [BASE], key["key"]))
        return Targets(self.api, made, BASE)


def prepared_model() -> Path:
    """The embedded model as a Hugging Face folder, made once. Raises StackError."""
    folder = WORK / BASE
    if not (folder / "prepared.json").exists():
        with console.status("Preparing the model"):
            command = [sys.executable, "-m", "tenora_engine", "prepare", "--out", str(folder)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise StackError(f"the model cannot be prepared: {made.stderr.strip()}")
    return folder


@contextmanager
def running_platform() -> Iterator[Platform]:
    """Raises StackError when it does not start. `TENORA_ENGINE_*` reaches its engine; no other setting of ours does.

    It stops at SIGTERM too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for name in [name for name in os.environ if name.startswith("TENORA_") and not name.startswith("TENORA_ENGINE_")]:
        del os.environ[name]  # a database or a Redis that is in use is not for this
    WORK.mkdir(parents=True, exist_ok=True)
    model = prepared_model()
    settings = Settings(
        home=Path(tempfile.mkdtemp(prefix="home-", dir=WORK)), port=free_port(), model=model, model_name=BASE
    )
    home = open_home(settings)
    try:
        with console.status("Starting the platform"):
            for _ in start_detached(settings):
                pass
        yield Platform(home, settings, model, read_base_model(model))
    finally:
        stop(home)
        shutil.rmtree(home.root, ignore_errors=True)
