"""docker-compose.yml and the Dockerfiles, without a Docker engine: their form, and that what they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tenora_platform.settings import Settings

STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
MAPPING = {"type": "object", "additionalProperties": {"type": "string"}}
CONDITION = {"enum": ["service_healthy", "service_started", "service_completed_successfully"]}
# The part of the Compose specification that the file uses; a key outside it is a typing error until it is added here.
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "networks"],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z0-9/._-]+:[a-z0-9._-]+$"},
        "build": {
            "type": "object",
            "required": ["context", "dockerfile"],
            "properties": {"context": {"const": "."}, "dockerfile": {"type": "string"}},
            "additionalProperties": False,
        },
        "command": STRINGS,
        "entrypoint": STRINGS,
        "environment": MAPPING,
        "volumes": STRINGS,
        "ports": STRINGS,
        "networks": STRINGS,
        "profiles": STRINGS,
        "restart": {"enum": ["unless-stopped", "on-failure"]},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "healthcheck": {
            "type": "object",
            "required": ["test"],
            "properties": {
                "test": {"type": "array", "items": {"type": "string"}},
                "interval": {"type": "string", "pattern": r"^\d+s$"},
                "retries": {"type": "integer"},
            },
            "additionalProperties": False,
        },
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "properties": {"condition": CONDITION},
                "additionalProperties": False,
            },
        },
        "deploy": {"type": "object"},
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["services", "networks", "volumes"],
    "patternProperties": {"^x-": {}},
    "properties": {
        "services": {"type": "object", "additionalProperties": SERVICE},
        "networks": {"type": "object"},
        "volumes": {"type": "object"},
    },
}


@pytest.fixture(scope="module")
def compose(repository: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((repository / "docker-compose.yml").read_text())
    return document


def test_the_file_is_well_formed(compose: dict[str, Any]) -> None:
    jsonschema.validate(compose, SCHEMA)


def test_services_volumes_and_networks_that_are_named_exist(compose: dict[str, Any], repository: Path) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", {})) <= set(compose["services"]), name
        assert set(service["networks"]) <= set(compose["networks"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (repository / source).exists(), f"{name}: {source}"
        if "build" in service:
            assert (repository / service["build"]["dockerfile"]).is_file(), name
        elif service["image"].startswith("tenora/"):
            assert any(
                "build" in other and other["image"] == service["image"] for other in compose["services"].values()
            )


def test_every_variable_is_in_the_example_and_every_secret_is_required(repository: Path) -> None:
    text = (repository / "docker-compose.yml").read_text()
    example = (repository / "deploy" / "example.env").read_text()
    used = dict(re.findall(r"(?<!\$)\$\{([A-Z_]+)(:[?-])?", text))
    named = set(re.findall(r"^#? ?([A-Z_]+)=", example, re.MULTILINE))
    assert set(used) == named
    for name, operator in used.items():
        if "PASSWORD" in name or "SECRET" in name:
            assert operator == ":?", f"{name} must be required"


def test_platform_services_set_only_variables_that_the_settings_know(compose: dict[str, Any]) -> None:
    known = {f"TENORA_{name}".upper() for name in Settings.model_fields}
    for name in ("gateway", "control", "worker", "migrate"):
        assert set(compose["services"][name]["environment"]) <= known, name


def test_every_command_is_one_that_the_command_line_has(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if not service["image"].startswith("tenora/") or "entrypoint" in service:
            continue
        subcommand = service["command"][0]
        command = [sys.executable, "-m", "tenora_platform.cli.main", "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "200", "PATH": ""})
        assert re.search(rf"\b{subcommand}\b", shown.stdout), f"{name}: {subcommand}"


@pytest.mark.parametrize("image", ["platform", "engine-cpu", "engine-gpu"])
def test_images_run_unprivileged_and_install_extras_that_exist(repository: Path, image: str) -> None:
    text = (repository / "deploy" / f"{image}.Dockerfile").read_text()
    final = text.split("\nFROM ")[-1]
    assert re.search(r"^USER tenora$", final, re.MULTILINE)
    assert 'ENTRYPOINT ["tenora"]' in final
    extras = set(tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    installed = set(re.search(r"\.whl\)\[([a-z0-9,]+)\]", final)[1].split(","))  # type: ignore[index]
    assert installed <= extras
    assert ("engine" in installed) == (image != "platform"), "a gateway node installs no torch"
    assert "s3" in installed, "each image reads or writes blobs, which may lie in a bucket"
