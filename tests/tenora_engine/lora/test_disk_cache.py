"""The disk cache: whatever happens to its files, what comes out is the store's, or that adapter's failure."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import Barrier, Thread
from typing import BinaryIO

import pytest

from tenora_adapters.blobs import BlobUnavailable, FolderStore
from tenora_adapters.manifest import (
    CONFIG_FILE,
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    WEIGHTS_FILE,
    Manifest,
    adapter_digest,
    blob_key,
    encode_manifest,
)
from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.disk_cache import DiskCache

SIZE = 10_000
FILES = (CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE)


class Store(FolderStore):
    """Counts what is asked of it; `away` is a store that cannot be reached."""

    away = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_weights_read = 0

    def open(self, key: str) -> BinaryIO:
        if self.away:
            raise BlobUnavailable("away")
        self.num_weights_read += key.endswith(WEIGHTS_FILE)
        return super().open(key)

    def add(self, number: int) -> str:
        """An adapter of SIZE bytes; its digest."""
        config, weights = b"{}", number.to_bytes(4, "big") * (SIZE // 4)
        sums = sha256(config).hexdigest(), sha256(weights).hexdigest()
        digest = adapter_digest(*sums)
        manifest = Manifest(MANIFEST_SCHEMA, digest, "base", *sums, SIZE, (), ())
        for file, content in zip(FILES, (config, weights, encode_manifest(manifest)), strict=True):
            self.put(blob_key(digest, file), io.BytesIO(content))
        return digest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cached(folder: Path) -> set[str]:
    return {path.name for path in (folder / "adapters").iterdir()}


def test_what_was_fetched_is_read_without_the_store(store: Store, folder: Path):
    digest = store.add(1)
    cache = DiskCache(store, folder, 10 * SIZE)
    assert cache.fetch(digest).weights_bytes == SIZE
    store.away = True
    assert DiskCache(store, folder, 10 * SIZE).fetch(digest).digest == digest  # also after a restart
    assert len(cache.read(digest).weights) == SIZE


def corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [corrupt, Path.unlink, lambda path: path.write_bytes(b""), lambda path: None])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_or_vanished_file_is_fetched_again(
    store: Store, folder: Path, file: str, harm: Callable[[Path], object]
):
    """ADP-17, on this machine's disk: nobody notices."""
    cache, digest = DiskCache(store, folder, 10 * SIZE), store.add(1)
    cache.fetch(digest)
    harm(folder / "adapters" / digest / file)
    assert cache.read(digest).weights == store.open(blob_key(digest, WEIGHTS_FILE)).read()
    for name in FILES:
        assert (folder / "adapters" / digest / name).read_bytes() == store.open(blob_key(digest, name)).read()


@pytest.mark.parametrize("file", FILES)
def test_what_is_corrupt_in_the_store_is_kept_nowhere(store: Store, folder: Path, file: str):
    """And once it is whole there, it is served."""
    cache, digest, other = DiskCache(store, folder, 10 * SIZE), store.add(1), store.add(2)
    path = store.root / "adapters" / digest / file
    whole = path.read_bytes()
    corrupt(path)
    with pytest.raises(AdapterUnavailable, match="corrupt"):
        cache.fetch(digest)
    assert cached(folder) == set()
    assert list(folder.glob("fill-*")) == []
    assert cache.read(other).manifest.digest == other
    path.write_bytes(whole)
    assert cache.read(digest).manifest.digest == digest


def test_weights_beyond_what_the_manifest_says_fill_no_disk(store: Store, folder: Path):
    cache, digest = DiskCache(store, folder, 10 * SIZE), store.add(1)
    (store.root / "adapters" / digest / WEIGHTS_FILE).write_bytes(bytes(100 * SIZE))
    with pytest.raises(AdapterUnavailable, match="larger than its manifest says"):
        cache.fetch(digest)
    assert cached(folder) == set()


def test_the_longest_unused_makes_room(store: Store, folder: Path):
    cache = DiskCache(store, folder, 4 * SIZE)
    digests = [store.add(number) for number in range(4)]
    for age, digest in enumerate(digests[:3]):
        cache.fetch(digest)
        os.utime(folder / "adapters" / digest, (age, age))
    cache.read(digests[0])
    cache.fetch(digests[3])
    assert cached(folder) == {digests[0], digests[2], digests[3]}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 4 * SIZE


def test_one_that_is_larger_than_the_cache_is_served_from_the_store(store: Store, folder: Path):
    cache, digest = DiskCache(store, folder, SIZE - 1), store.add(1)
    cache.fetch(digest)
    assert len(cache.read(digest).weights) == SIZE
    assert cached(folder) == set()


def test_a_disk_that_fails_is_no_adapters_fault(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch):
    cache, digest = DiskCache(store, folder, 10 * SIZE), store.add(1)
    monkeypatch.setattr(Path, "mkdir", lambda *args, **options: (_ for _ in ()).throw(OSError(28, "no space left")))
    cache.fetch(digest)
    assert len(cache.read(digest).weights) == SIZE


def test_a_store_out_of_reach_is_worth_another_try(store: Store, folder: Path):
    cache, digest = DiskCache(store, folder, 10 * SIZE), store.add(1)
    store.away = True
    with pytest.raises(AdapterUnavailable) as told:
        cache.fetch(digest)
    assert told.value.retryable
    store.away = False
    assert cache.fetch(digest).digest == digest


def test_what_a_dead_process_left_behind_is_cleared(store: Store, folder: Path):
    digest = store.add(1)
    DiskCache(store, folder, 10 * SIZE)
    for name in (f"fill-{digest}", f"fill-{'a' * 64}", "gone-abc"):
        (folder / name).mkdir()
        (folder / name / WEIGHTS_FILE).write_bytes(b"half")
    cache = DiskCache(store, folder, 10 * SIZE)
    assert len(cache.read(digest).weights) == SIZE
    assert {path.name for path in folder.iterdir()} == {"adapters", "locks"}


def test_an_engine_that_starts_leaves_what_another_fetches(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Half of it is there when the other begins; what it clears is nobody's."""
    digest, real = store.add(1), store.open
    cache = DiskCache(store, folder, 10 * SIZE)

    def start_another(key: str) -> BinaryIO:
        if key.endswith(WEIGHTS_FILE):
            DiskCache(store, folder, 10 * SIZE)
            assert (folder / f"fill-{digest}" / CONFIG_FILE).exists()
        return real(key)

    monkeypatch.setattr(store, "open", start_another)
    cache.fetch(digest)
    assert cached(folder) == {digest}


def test_replicas_that_want_the_same_fetch_it_once(store: Store, folder: Path):
    digest = store.add(1)
    caches = [DiskCache(store, folder, 10 * SIZE) for _ in range(6)]
    start = Barrier(len(caches))

    def fetch(cache: DiskCache) -> None:
        start.wait()
        cache.fetch(digest)

    threads = [Thread(target=fetch, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.num_weights_read == 1


def churn(root: Path, folder: Path, digests: list[str], seed: int) -> None:
    cache = DiskCache(FolderStore(root), folder, 3 * SIZE)
    for step in range(60):
        digest = digests[(step * (2 * seed + 1) + seed) % len(digests)]
        if step % 2:
            cache.fetch(digest)
        if len(cache.read(digest).weights) != SIZE:
            os._exit(1)
        if step % 10 == 9:  # what an operator may do at any time
            shutil.rmtree(folder / "adapters" / digest, ignore_errors=True)


def test_processes_that_evict_each_others_adapters(store: Store, folder: Path):
    """Room for two of six, four replicas: each always reads what it asked for, and the cap holds in the end."""
    digests = [store.add(number) for number in range(6)]
    context = multiprocessing.get_context("fork")
    replicas = [context.Process(target=churn, args=(store.root, folder, digests, seed)) for seed in range(4)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join(60)
    assert [replica.exitcode for replica in replicas] == [0, 0, 0, 0]
    assert 0 < len(cached(folder)) <= 2
    assert list(folder.glob("fill-*")) == []
