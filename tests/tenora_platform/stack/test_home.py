"""The data folder: secrets, ports, a full disk, a socket path that is too long."""

from __future__ import annotations

import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from tenora_platform.stack.home import Home
from tenora_platform.stack.part import StackError
from tenora_platform.stack.ports import port_is_free


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_secrets_are_made_once_private_and_all_different(home: Home) -> None:
    made = home.secrets()
    assert home.secrets() == made
    assert home.secrets_file.stat().st_mode & 0o777 == 0o600
    values = [made.platform, made.postgres, made.postgres_superuser, made.valkey, made.admin_password]
    assert len(set(values)) == 5
    assert min(map(len, values)) >= 16


def test_broken_secrets_are_reported_and_not_replaced(home: Home) -> None:
    home.secrets_file.write_text("{")
    with pytest.raises(StackError, match=r"secrets\.json"):
        home.secrets()
    assert home.secrets_file.read_text() == "{"


def test_ports_stay_until_somebody_else_has_them(home: Home) -> None:
    first = home.ports()
    assert home.ports() == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.postgres))
        taken.listen()
        assert not port_is_free(first.postgres)
        assert home.ports().postgres != first.postgres


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100 << 30, 100 << 30, 10 << 20))
    with pytest.raises(StackError, match="10 MiB are free"):
        Home(tmp_path / "home").prepare()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="cannot use the data folder"):
        Home(tmp_path / "file" / "home").prepare()


def test_sockets_have_short_private_paths(tmp_path: Path, home: Home) -> None:
    assert home.socket_folder().is_relative_to(home.run) or len(str(home.run)) > 80
    deep = Home(tmp_path / ("d" * 120) / "home")
    deep.prepare()
    folder = deep.socket_folder()
    try:
        assert len(str(folder)) < 90
        assert folder.stat().st_mode & 0o077 == 0
        folder.chmod(0o755)
        with pytest.raises(StackError, match="not a private folder"):
            deep.socket_folder()
    finally:
        folder.rmdir()
