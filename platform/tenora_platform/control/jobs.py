"""What a job is: a function over one transaction, known by name. Slices declare theirs in `tasks.py`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tenora_platform.control.transaction import Transaction


@dataclass(frozen=True)
class Job:
    """Run on one row. It may run twice, or at the same time as itself: it must look at the row's state first."""

    name: str
    run: Callable[[Transaction, uuid.UUID], None]


@dataclass(frozen=True)
class Periodic:
    """Run by the clock. Two schedulers may run it at the same time."""

    name: str
    run: Callable[[Transaction], None]
    every: timedelta
