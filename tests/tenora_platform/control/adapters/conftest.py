"""A tenant with adapters, what gateways hear of them, and uploads that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from upload_fixtures import staging, tenant

from tenora_platform.changes import CHANNEL, Change, decode_change
from tenora_platform.control.resources import Resources

__all__ = ["heard", "staging", "tenant"]


@pytest.fixture
def heard(resources: Resources) -> Iterator[Callable[[], Change | None]]:
    with resources.redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(CHANNEL)
        subscription.get_message(timeout=1)

        def next_change() -> Change | None:
            message = subscription.get_message(timeout=0.2)
            return decode_change(message["data"]) if message else None

        yield next_change
