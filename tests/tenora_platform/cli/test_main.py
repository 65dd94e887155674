"""The command on nodes that have one extra only: what needs no more works, and the rest says what to install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def tenora(*arguments: str, without: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command where the module `without` is not installed."""
    program = f"import sys; sys.modules[{without!r}] = None; from tenora_platform.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PATH": os.environ["PATH"], "TENORA_HOME": "/nowhere", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "without", "extra"),
    [
        (("gateway",), "uvicorn", "tenora[platform]"),
        (("tenant", "list"), "httpx", "tenora[platform]"),
        (("status",), "psutil", "tenora[embedded]"),
        (("engine",), "torch", "tenora[engine]"),
    ],
)
def test_what_a_node_lacks_is_one_message_that_names_the_extra(
    arguments: tuple[str, ...], without: str, extra: str
) -> None:
    shown = tenora(*arguments, without=without)
    assert shown.returncode == 1
    assert f"pip install '{extra}'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_platform_node_administers_by_url_without_the_embedded_stack() -> None:
    shown = tenora("tenant", "list", without="psutil", TENORA_URL="http://127.0.0.1:1", TENORA_PASSWORD="x")
    assert shown.returncode == 1
    assert "http://127.0.0.1:1 cannot be reached" in shown.stderr
