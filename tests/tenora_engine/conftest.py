"""One tiny base and its adapters for the whole folder; each test builds the engine that it needs in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import poison
import pytest
import torch
from engine_under_test import EngineUnderTest, Oracle, World, random_adapter, store_adapter, tiny_llama

from tenora_adapters.base import read_base_model
from tenora_adapters.blobs import FolderStore

# Ranks and targets as ADP-19 asks: 1, 4, 8 and 64, on different sets of modules.
_ADAPTERS: dict[str, dict[str, Any]] = {
    "r1": {"rank": 1, "targets": ("q_proj", "v_proj")},
    "r4": {"rank": 4, "targets": ("k_proj", "o_proj", "up_proj")},
    "r8": {"rank": 8},
    "r64": {"rank": 64, "use_rslora": True},
    "dora": {"rank": 8, "targets": ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), "use_dora": True},
}


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _poisoned() -> Iterator[None]:
    with poison.poisoned_memory() if poison.WANTED else nullcontext():
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    model = tiny_llama(root / "model")
    base = read_base_model(model)
    store = FolderStore(root / "blobs")
    folders = {
        name: random_adapter(model, root / name, seed=seed, **options)
        for seed, (name, options) in enumerate(_ADAPTERS.items())
    }
    digests = {name: store_adapter(store, folder, base) for name, folder in folders.items()}
    return World(model, base, store, folders, digests)


@pytest.fixture(scope="session")
def oracle(world: World) -> Oracle:
    return Oracle(world.model, world.folders)


@pytest.fixture
def make_engine(world: World) -> Iterator[Callable[..., EngineUnderTest]]:
    """Builds engines on the tiny base; options are those of EngineConfig."""
    made: list[EngineUnderTest] = []

    def make(model: Path | None = None, **options: Any) -> EngineUnderTest:
        made.append(EngineUnderTest(model or world.model, options.pop("store", world.store), **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., EngineUnderTest]) -> EngineUnderTest:
    return make_engine()
