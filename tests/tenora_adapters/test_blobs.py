"""What the port promises, by the folder and by a server that speaks S3."""

from __future__ import annotations

import io
import secrets
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bucket_fixtures import s3_url

from tenora_adapters.blobs import BlobError, BlobNotFound, BlobStore, BlobUnavailable, open_store

__all__ = ["s3_url"]

LARGE = 9 * 2**20  # more than S3 takes in one part by default


@pytest.fixture(params=["folder", "s3", "s3 without prefix"])
def url(request: pytest.FixtureRequest, tmp_path: Path, s3_url: str) -> str:
    if request.param == "folder":
        return f"file://{tmp_path}/blobs"
    return s3_url.format(prefix=f"some/{secrets.token_hex(4)}" if request.param == "s3" else "")


@pytest.fixture
def store(url: str) -> BlobStore:
    return open_store(url)


def test_put_replace_and_delete(store: BlobStore) -> None:
    for data in (b"first", b"", b"x" * LARGE):
        source = io.BytesIO(data)
        assert store.put("adapters/d/file.json", source) == len(data)
        assert not source.closed
        with store.open("adapters/d/file.json") as file:
            assert file.read() == data
            file.seek(max(len(data) - 3, 0))
            assert file.read() == data[-3:]
    store.delete("adapters/d/file.json")
    store.delete("adapters/d/file.json")
    with pytest.raises(BlobNotFound):
        store.open("adapters/d/file.json")


def test_keys_of_a_folder(store: BlobStore) -> None:
    assert store.keys("uploads/1") == []
    for key in ("uploads/1/2", "uploads/1/1", "uploads/10/1", "uploads/1/a/b", "other/1"):
        store.put(key, io.BytesIO(b"x"))
    assert store.keys("uploads/1") == ["uploads/1/1", "uploads/1/2", "uploads/1/a/b"]
    for key in store.keys("uploads"):
        store.delete(key)
    assert store.keys("uploads") == []
    store.delete("other/1")


def test_nothing_of_a_put_that_failed(store: BlobStore) -> None:
    """Neither half of it, nor of what was there before."""

    class Cut(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > LARGE - 2**20:
                raise ConnectionResetError("cut")
            return super().read(2**20)  # whatever was asked for

    store.put("a/b", io.BytesIO(b"before"))
    with pytest.raises((ConnectionResetError, BlobUnavailable)):
        store.put("a/b", Cut(bytes(LARGE)))
    with store.open("a/b") as file:
        assert file.read() == b"before"
    assert store.keys("a") == ["a/b"]
    store.delete("a/b")


KILLED = """
import io, os, signal, sys
from tenora_adapters.blobs import open_store

class Killing(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) or os.kill(os.getpid(), signal.SIGKILL)

open_store(sys.argv[1]).put("a/cut", Killing(bytes(int(sys.argv[2]))))
"""


def test_what_killed_puts_left_is_swept(store: BlobStore, url: str) -> None:
    """Not before its time, and nothing else: the bucket's other prefixes are somebody else's."""
    store.put("a/whole", io.BytesIO(b"whole"))
    killed = subprocess.run([sys.executable, "-c", KILLED, url, str(LARGE)], check=False)
    assert killed.returncode == -signal.SIGKILL
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert store.sweep(datetime(2001, 1, 1, tzinfo=UTC)) == 0
    if "/some/" in url:
        assert open_store(url.replace("/some/", "/some/other-")).sweep(later) == 0
    assert [store.sweep(later) for _ in range(2)] == [1, 0]
    assert store.keys("a") == ["a/whole"]
    store.delete("a/whole")


def test_a_sweep_of_nothing(store: BlobStore) -> None:
    assert store.sweep(datetime.now(UTC)) == 0


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.b", "a\\b", "a b", "a\0", "é"])
def test_keys_that_are_none(store: BlobStore, key: str) -> None:
    for call in (store.open, store.keys, store.delete, lambda key: store.put(key, io.BytesIO())):
        with pytest.raises(BlobError, match="not a blob key"):
            call(key)


def test_a_store_that_is_away(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenora_adapters import s3_store

    monkeypatch.setattr(s3_store, "_CONFIG", s3_store.Config(retries={"total_max_attempts": 1}, connect_timeout=1))
    away = open_store("s3://blobs?endpoint=http://127.0.0.1:1&region=x")
    missing = open_store(s3_url.replace("blobs/", "no-such-bucket/").format(prefix="p"))
    for store in (away, missing):
        with pytest.raises(BlobUnavailable):
            store.put("a", io.BytesIO(b"x"))
        with pytest.raises(BlobUnavailable):
            store.keys("a")
        with pytest.raises(BlobUnavailable):
            store.sweep(datetime.now(UTC))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3:///prefix", "bucket"),
        ("s3://key:secret@bucket", "credentials"),
        ("s3://bucket/../x", "not a blob key"),
        ("s3://bucket?colour=red", "colour"),
        ("gs://bucket", "unsupported"),
        ("relative/folder", "unsupported"),
    ],
)
def test_urls_that_are_none(url: str, says: str) -> None:
    with pytest.raises(BlobError, match=says) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_node_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "tenora_adapters.s3_store", raising=False)
    with pytest.raises(BlobError, match=r"pip install 'tenora\[s3\]'"):
        open_store("s3://bucket")
