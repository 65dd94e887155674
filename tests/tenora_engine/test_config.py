"""Where the engine's options come from: the command line, then the environment, then their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenora_engine.config import Dtype, EngineConfig, parse_config

NEEDED = ["--listen", "ipc:///engine.sock", "--model", "/model", "--blobs", "file:///blobs"]


def test_what_is_not_said_has_the_defaults_of_the_config() -> None:
    assert parse_config(NEEDED, {}) == EngineConfig("ipc:///engine.sock", Path("/model"), "file:///blobs")


def test_the_command_line_stands_above_the_environment() -> None:
    environment = {"TENORA_ENGINE_MODEL": "/other", "TENORA_ENGINE_KV_BLOCKS": "7", "TENORA_ENGINE_PREFIX_CACHE": "off"}
    config = parse_config([*NEEDED, "--dtype", "fp32", "--kv-blocks", "9"], environment)
    assert config.model == Path("/model")
    assert (config.kv_blocks, config.prefix_cache, config.dtype) == (9, False, Dtype.FP32)
    assert parse_config(NEEDED[:2] + NEEDED[4:], environment).model == Path("/other")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (NEEDED[2:], "--listen"),
        ([*NEEDED, "--threads", "0"], "--threads"),
        ([*NEEDED, "--dtype", "fp8"], "--dtype"),
        ([*NEEDED, "--prefix-cache", "maybe"], "--prefix-cache"),
        ([*NEEDED, "--max-batch-tokens", "8", "--max-sequences", "16"], "--max-batch-tokens"),
        ([*NEEDED, "--host-adapters", "2", "--adapter-slots", "4"], "--host-adapters"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(arguments, {})
    assert says in capsys.readouterr().err
