from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenora_platform.bench.find import NothingToAsk, find_targets, local_tokenizer
from tenora_platform.bench.targets import Targets
from tenora_platform.settings import Settings

DEMO = {
    "api": "http://127.0.0.1:8080/v1",
    "control": "http://127.0.0.1:8080/api/v1",
    "base_model": "smollm2-135m",
    "tenants": [{"name": "acme", "id": "1", "api_key": "tnr_secret", "models": ["smollm2-135m:bot"]}],
    "admin_password": "secret",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("TENORA_URL", "TENORA_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Settings(home=tmp_path)


def find(config: Settings, *, url: str | None = None, models: tuple[str, ...] = (), base_only: bool = False) -> Targets:
    return find_targets(config, None, url, list(models), base_only=base_only)


def write_demo(config: Settings) -> None:
    (config.home / "demo.json").write_text(json.dumps(DEMO))


def test_the_running_demo_is_found(config: Settings) -> None:
    write_demo(config)
    found = find(config)
    assert found.api == DEMO["api"]
    assert [(t.name, t.api_key, t.models) for t in found.tenants] == [("acme", "tnr_secret", ["smollm2-135m:bot"])]


def test_the_base_alone_or_named_models_may_be_asked(config: Settings) -> None:
    write_demo(config)
    assert find(config, base_only=True).tenants[0].models == ["smollm2-135m"]
    assert find(config, models=("m",)).tenants[0].models == ["m"]


def test_a_url_is_asked_with_the_key_of_the_environment(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    found = find(config, url="http://peer:1/v1/", models=("m",))
    assert (found.api, found.tenants[0].api_key, found.tenants[0].models) == ("http://peer:1/v1", "sk-1", ["m"])


def test_a_platform_elsewhere_comes_before_the_demo(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_demo(config)
    monkeypatch.setenv("TENORA_URL", "http://elsewhere:1/")
    assert find(config, models=("m",)).api == "http://elsewhere:1/v1"


def test_nothing_to_ask_says_how_to_name_something(config: Settings) -> None:
    with pytest.raises(NothingToAsk, match=r"tenora demo.*--url"):
        find(config)
    with pytest.raises(NothingToAsk, match="use --model"):
        find(config, url="http://127.0.0.1:1/v1")
    with pytest.raises(NothingToAsk, match="base_model"):
        find(config, url="http://127.0.0.1:1/v1", models=("m",), base_only=True)


def test_a_file_that_is_none_is_said(config: Settings) -> None:
    (config.home / "demo.json").write_text('{"api": "x", "tenants": []}')
    with pytest.raises(NothingToAsk, match="every tenant needs a model"):
        find(config)


def test_the_tokenizer_is_that_of_the_local_base(config: Settings) -> None:
    write_demo(config)
    assert local_tokenizer(config, find(config)) is None
    folder = config.home / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    assert local_tokenizer(config, find(config)) == str(folder)
    assert local_tokenizer(config, find(config, url="http://peer:1/v1", models=("m",))) is None
