from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from scripted_server import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer().running() as running:
        yield running
