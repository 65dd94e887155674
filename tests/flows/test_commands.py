"""The `tenora` command against a running platform: flows 2 and 3 as an operator drives them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import RunningPlatform, Tenant


@pytest.fixture(scope="module")
def tenant(platform: RunningPlatform) -> Tenant:
    return platform.new_tenant()


def test_a_tenant_and_its_key_from_the_command_line(platform: RunningPlatform) -> None:
    made = json.loads(platform.tenora("tenant", "create", "acme", "--timezone", "Europe/Berlin", "--json").stdout)
    assert made["timezone"] == "Europe/Berlin"
    key = platform.tenora("key", "create", "-t", "acme").stdout.strip().splitlines()[-1]
    assert key.startswith("tnr_")
    listed = platform.tenora("key", "list", "-t", "acme").stdout
    assert key not in listed
    prefix = key.split("_")[1]
    assert prefix in listed
    assert prefix in platform.tenora("key", "revoke", prefix, "-t", "acme").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tenant", "create", "Not A Name"], "name"),
        (["tenant", "create", "zone", "--timezone", "Mars/Olympus"], "timezone"),
        (["key", "create", "-t", "nobody"], "there is no tenant"),
        (["adapter", "list", "-t", "nobody"], "there is no tenant"),
        (["export", "-t", "nobody"], "there is no tenant"),
    ],
)
def test_wrong_input_is_one_message_and_status_1(platform: RunningPlatform, arguments: list[str], says: str) -> None:
    result = platform.tenora(*arguments, check=False)
    assert result.returncode == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_pushing_an_adapter_twice_makes_two_versions(platform: RunningPlatform, tenant: Tenant, examples: Path) -> None:
    def push(folder: str) -> dict[str, object]:
        command = ("adapter", "upload", str(examples / folder), "-t", tenant.name, "-n", "style", "--json")
        return dict(json.loads(platform.tenora(*command).stdout))

    first, second = push("pirate"), push("json")
    assert (first["number"], second["number"]) == (1, 2)
    assert first["digest"] != second["digest"]
    assert first["model"] == second["model"] == "smollm2-135m:style"
    assert "v2" in platform.tenora("adapter", "list", "-t", tenant.name).stdout


def test_a_refused_adapter_says_what_to_mend(
    platform: RunningPlatform, tenant: Tenant, examples: Path, tmp_path: Path
) -> None:
    """ADP-02: the config says rank 4, the tensors have another; the report names tensor and shapes."""
    shutil.copytree(examples / "pirate", tmp_path / "broken")
    config = tmp_path / "broken" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "r": 4}))
    result = platform.tenora(
        "adapter", "upload", str(tmp_path / "broken"), "-t", tenant.name, "-n", "broken", check=False
    )
    assert result.returncode == 1
    assert "lora_A" in result.stderr
    assert "Traceback" not in result.stderr

    (tmp_path / "empty").mkdir()
    result = platform.tenora(
        "adapter", "upload", str(tmp_path / "empty"), "-t", tenant.name, "-n", "empty", check=False
    )
    assert result.returncode == 1
    assert "adapter_config.json" in result.stderr


def test_an_export_holds_what_was_used_and_its_digest_is_true(
    platform: RunningPlatform, tenant: Tenant, tmp_path: Path
) -> None:
    usage = platform.openai(tenant).completions.create(model="smollm2-135m", prompt="One two", max_tokens=3).usage
    assert usage is not None
    with platform.control() as control:
        platform.until(lambda: bool(control.get(f"/tenants/{tenant.id}/usage", bucket="day")["items"]))
    path = tmp_path / "bill.csv"
    made = json.loads(platform.tenora("export", "-t", tenant.name, "-o", str(path), "--json").stdout)
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == made["sha256"]
    (row,) = csv.DictReader(io.StringIO(data.decode()))
    assert row["tenant"] == tenant.name
    assert int(row["prompt_tokens"]) == usage.prompt_tokens
    assert int(row["completion_tokens"]) == usage.completion_tokens == 3
