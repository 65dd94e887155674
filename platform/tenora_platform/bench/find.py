"""Finding something to ask: a file of tenants, a URL, or the platform that runs on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from tenora_platform.bench.targets import Targets, TargetTenant, read_targets
from tenora_platform.settings import Settings


class NothingToAsk(Exception):
    """No server, key or model is known. The message says how to name one."""


def find_targets(
    config: Settings, file: Path | None, url: str | None, models: list[str], *, base_only: bool
) -> Targets:
    """By `file`, else `url`, else `TENORA_URL`, else what `tenora demo` left. Raises NothingToAsk."""
    demo = config.home.expanduser() / "demo.json"
    root = os.environ.get("TENORA_URL")
    try:
        if file is not None:
            targets = read_targets(file)
        elif url is not None or root is not None:
            targets = _of_url(url or f"{(root or '').rstrip('/')}/v1", models)
        elif demo.exists():
            targets = read_targets(demo)
        else:
            raise NothingToAsk(f"{demo} is not there: run `tenora demo`, or name a server with --url or --targets")
    except (OSError, ValueError) as error:
        raise NothingToAsk(str(error)) from error
    if base_only:
        if targets.base_model is None:
            raise NothingToAsk("--base needs targets that name their base_model; use --model")
        models = [targets.base_model]
    return targets.asking(models) if models else targets


def local_tokenizer(config: Settings, targets: Targets) -> str | None:
    """The folder of the base that the platform on this machine serves; None when the targets are others."""
    if targets.base_model != config.model_name:
        return None
    folder = (config.model or config.home / "models" / config.model_name).expanduser()
    return str(folder) if (folder / "tokenizer.json").is_file() else None


def _of_url(url: str, models: list[str]) -> Targets:
    """One caller, with all models that the server lists unless some are named."""
    url = url.rstrip("/")
    key = os.environ.get("TENORA_KEY") or os.environ.get("OPENAI_API_KEY", "")
    if not models:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = httpx.get(f"{url}/models", headers=headers, timeout=10.0)
            answer.raise_for_status()
            models = [entry["id"] for entry in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise NothingToAsk(f"{url}/models does not say which models there are ({error}); use --model") from error
    return Targets(url, [TargetTenant("-", models, key)])
