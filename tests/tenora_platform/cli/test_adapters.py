"""`tenora adapter` against a control plane in this process, with connections that break."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_calls
import adapter_files as files
import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from tenora_platform.cli import client, uploading
from tenora_platform.cli.adapters import app
from tenora_platform.cli.terminal import CommandError
from tenora_platform.control.resources import Resources


class Wire:
    """The way to the control plane. `cut` is asked before and after each request whether the connection breaks."""

    def __init__(self, http: TestClient) -> None:
        self.http, self.calls = http, list[tuple[str, str]]()
        self.cut: Callable[[str, str, bool], bool] = lambda *_: False

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        self.calls.append((method, path.rpartition("/")[2]))
        if self.cut(method, path, False):
            raise httpx.ReadError("connection reset")
        options.pop("timeout", None)
        answer = self.http.request(method, f"/api/v1{path}", **options)
        if self.cut(method, path, True):
            raise httpx.ReadError("connection reset")
        return answer


@pytest.fixture
def wire(admin: TestClient, resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire(admin)

    class InProcess(client.ControlClient):
        def __init__(self) -> None:
            self.url, self._http = "http://control", made  # type: ignore[assignment]

        def __enter__(self) -> InProcess:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def get(self, path: str, **params: Any) -> Any:
            answer = super().get(path, **params)
            if answer.get("status") == "validating":
                adapter_calls.check(resources, answer)
            return answer

    monkeypatch.setattr(client, "connect", InProcess)
    monkeypatch.setattr(uploading, "PAUSES_S", (0, 0))
    monkeypatch.setattr(uploading, "CHUNK_BYTES", 512)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter_config.json").write_bytes(files.config())
    (tmp_path / "adapter_model.safetensors").write_bytes(files.weights())
    return tmp_path


@pytest.fixture
def tenant(make_tenant: Callable[..., uuid.UUID]) -> uuid.UUID:
    return make_tenant("acme")


def tenora(*arguments: object) -> Any:
    """The command's result; what a person reads of an error is `result.stderr` and the exception's message."""
    return CliRunner().invoke(app, [*map(str, arguments), "--tenant", "acme"])


def said(*arguments: object) -> str:
    result = tenora(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return str(result.stdout)


def upload(folder: Path, *options: str) -> Any:
    return tenora("upload", folder, "--name", "bot", *options)


def test_upload_in_chunks(wire: Wire, tenant: uuid.UUID, folder: Path) -> None:
    result = upload(folder, "--json")
    version = json.loads(result.stdout)
    assert (version["number"], version["status"], version["model"]) == (1, "ready", "tiny:bot")
    assert len([call for call in wire.calls if call[0] == "PATCH"]) > 3
    assert "Ask for model tiny:bot." in upload(folder).stdout
    assert "tiny:bot@3" in upload(folder, "--no-promote").stdout


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("step", ["POST", "PATCH", "finish"])
def test_a_cut_connection_is_taken_up_again(
    wire: Wire, admin: TestClient, tenant: uuid.UUID, folder: Path, step: str, arrived: bool
) -> None:
    """UPL-04: whether the request had arrived or not, every byte is sent once and one version is made."""
    cuts = 0

    def cut(method: str, path: str, after: bool) -> bool:
        nonlocal cuts
        hit = after is arrived and (path.endswith("/finish") if step == "finish" else method == step)
        cuts += hit
        return hit and cuts == 1

    wire.cut = cut
    assert upload(folder).exit_code == 0
    assert cuts > 1
    (adapter,) = admin.get(adapter_calls.url(tenant)).json()["items"]
    assert adapter["versions_count"] == 1
    assert len(admin.get(f"/api/v1/tenants/{tenant}/uploads").json()["items"]) == 1


def test_the_same_command_again_goes_on(wire: Wire, admin: TestClient, tenant: uuid.UUID, folder: Path) -> None:
    sent = 0

    def cut(method: str, path: str, after: bool) -> bool:
        nonlocal sent
        sent += method == "PATCH" and after
        return sent >= 2

    wire.cut = cut
    result = upload(folder)
    assert isinstance(result.exception, CommandError)
    assert "cannot be reached" in str(result.exception)
    wire.cut, wire.calls = lambda *_: False, []
    assert upload(folder).exit_code == 0
    whole = sum(file.stat().st_size for file in folder.iterdir())
    assert len([call for call in wire.calls if call[0] == "PATCH"]) == -(-whole // 512) - 2


def test_a_changed_file_begins_anew(wire: Wire, admin: TestClient, tenant: uuid.UUID, folder: Path) -> None:
    wire.cut = lambda method, path, after: path.endswith("/finish")
    upload(folder)
    (folder / "adapter_model.safetensors").write_bytes(files.weights(seed=2))
    wire.cut = lambda *_: False
    assert upload(folder).exit_code == 0
    items = admin.get(f"/api/v1/tenants/{tenant}/uploads").json()["items"]
    assert [item["status"] for item in items] == ["finished", "receiving"]


def test_other_options_begin_anew(wire: Wire, admin: TestClient, tenant: uuid.UUID, folder: Path) -> None:
    """What is asked for now is what is done, whatever an upload of the same files that was cut off had asked for."""
    wire.cut = lambda method, path, after: path.endswith("/finish")
    upload(folder)
    upload(folder, "--no-promote", "--confirm-base")
    wire.cut = lambda *_: False
    assert upload(folder, "--no-promote").exit_code == 0
    (adapter,) = admin.get(adapter_calls.url(tenant)).json()["items"]
    assert (adapter["versions_count"], adapter["active_version"]) == (1, None)
    items = admin.get(f"/api/v1/tenants/{tenant}/uploads").json()["items"]
    assert [(item["status"], item["promote"], item["confirm_base"]) for item in items] == [
        ("finished", False, False),
        ("receiving", False, True),
        ("receiving", True, False),
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_rejected_says_which_module_and_what_to_do(
    wire: Wire, tenant: uuid.UUID, folder: Path, as_json: bool
) -> None:
    """ADP-04 by the worker, ADP-02 at the door: the module, what is wrong with it, what to do; and no success."""
    options = ["--json"] if as_json else []
    (folder / "adapter_model.safetensors").write_bytes(files.weights(poison=float("nan")))
    rejected = upload(folder, *options)
    (folder / "adapter_model.safetensors").write_bytes(files.weights(rank=2))
    refused = upload(folder, *options)
    assert rejected.exit_code == refused.exit_code == 1
    if as_json:
        assert json.loads(rejected.stdout)["report"]["problems"][0]["code"] == "non_finite"
        assert json.loads(refused.stdout)["error"]["report"]["problems"][0]["code"] == "wrong_shape"
        return
    assert "v1 was rejected" in str(rejected.exception)
    assert "non_finite in module model.layers.1.self_attn.q_proj\n" in rejected.stderr
    assert "what to do:    The training diverged" in rejected.stderr
    assert "bot was refused" in str(refused.exception)
    assert "wrong_shape in module model.layers.0.self_attn.q_proj\n" in refused.stderr
    assert "check r and rank_pattern" in refused.stderr
    shown = tenora("show", "bot")
    assert "v1 was rejected" in shown.stdout
    assert "The training diverged" in shown.stderr


def test_a_full_quota_says_what_to_do(wire: Wire, admin: TestClient, tenant: uuid.UUID, folder: Path) -> None:
    admin.put(f"/api/v1/tenants/{tenant}/adapter-quota", json={"max_adapters": 0, "max_bytes": None})
    result = upload(folder)
    assert result.exit_code == 1
    assert "tenora adapter delete" in result.stderr


def test_from_list_to_delete(wire: Wire, tenant: uuid.UUID, folder: Path) -> None:
    for seed in (1, 2, 3):
        (folder / "adapter_model.safetensors").write_bytes(files.weights(seed))
        upload(folder)
    assert said("list").splitlines()[-1].startswith("1 adapters, ")
    assert "serves v1." in said("promote", "bot", 1)
    assert "serves v1 90 %, v2 10 %." in said("canary", "tiny:bot", 2, 10)
    assert "serves v1." in said("canary", "bot", "--end")
    assert "serves v3." in said("rollback", "bot")
    assert json.loads(said("retire", "bot", 2, "--json"))["versions"][1]["status"] == "retired"
    assert "retired" in said("show", "bot")
    assert "norm of what it adds" in said("show", "bot")
    assert "Deleted version 2 of bot." in said("delete", "bot", 2, "--yes")
    assert len(json.loads(said("show", "bot", "--json"))["versions"]) == 2
    assert "Deleted bot with all its versions." in said("delete", "bot", "--yes")
    assert json.loads(said("list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nobody"], "there is no adapter"),
        (["promote", "bot", 9], "No such version"),
        (["retire", "bot", 9], "there is no version 9"),
        (["delete", "bot", 1, "--yes"], "serves requests"),
        (["canary", "bot", 1], "how many per cent"),
        (["canary", "bot"], "how many per cent"),
        (["canary", "bot", 1, 10, "--end"], "how many per cent"),
        (["canary", "bot", 1, 10], "serves already"),
        (["rollback", "bot"], "no version to go back to"),
    ],
)
def test_what_cannot_be_done(wire: Wire, tenant: uuid.UUID, folder: Path, arguments: list[object], says: str) -> None:
    upload(folder)
    result = tenora(*arguments)
    assert result.exit_code == 1
    assert says in str(result.exception)
