"""A tenant with adapters, what gateways hear of them, and uploads that leave nothing behind."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenora_platform.changes import CHANNEL, Change, decode_change
from tenora_platform.control.resources import Resources


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where uploads are staged; it must be empty again after every test."""
    folder = tmp_path / "staging"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def tenant(make_tenant: Callable[..., uuid.UUID]) -> uuid.UUID:
    return make_tenant("acme")


@pytest.fixture
def heard(resources: Resources) -> Iterator[Callable[[], Change | None]]:
    with resources.redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(CHANNEL)
        subscription.get_message(timeout=1)

        def next_change() -> Change | None:
            message = subscription.get_message(timeout=0.2)
            return decode_change(message["data"]) if message else None

        yield next_change
