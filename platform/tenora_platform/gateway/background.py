"""Tasks that run as long as the process does: one that ends by itself is a fault, and says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


def run_in_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start `work`. Readiness looks at whether it still runs."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        _log.critical("%s has ended: this process is not ready any more", task.get_name(), exc_info=task.exception())
