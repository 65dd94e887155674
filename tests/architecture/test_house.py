"""Small promises of the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest


def tracked(repository: Path) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    files = [repository / name for name in names.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def test_every_extra_is_pinned_and_has_a_reason(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    reasons = (repository / "docs" / "dependencies.md").read_text()
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (repository / "constraints.txt").open()
        if "==" in line
    }
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(d for extra in extras.values() for d in extra)]
    names = {re.split(r"[\[<>=~;, ]", dependency)[0].lower() for dependency in wanted} - {"tenora"}
    assert {name for name in names if name.replace("_", "-") not in pins} == set()
    assert {name for name in names if f"`{name}`" not in reasons} == set()


def test_architecture_page_stays_short(repository: Path) -> None:
    assert len((repository / "ARCHITECTURE.md").read_text().splitlines()) < 120


@pytest.mark.parametrize(
    "pattern", [r"/(root|home/[a-z]+|tmp/tenora)[/-]", r"registry\.npmjs|pypi\.(org|python)|deb\.debian"]
)
def test_no_machine_path_or_registry_host_is_named(repository: Path, pattern: str) -> None:
    found = []
    for file in tracked(repository):
        if file == Path(__file__).resolve() or file.suffix in {".png", ".safetensors"}:
            continue
        for number, line in enumerate(file.read_text(errors="ignore").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{file.relative_to(repository)}:{number}: {line.strip()[:120]}")
    assert found == []
