"""One request, or one task, is one transaction; what must leave the process leaves after it has committed."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
from kombu.exceptions import OperationalError as QueueDown

from tenora_platform.changes import CHANNEL, Change, encode_change
from tenora_platform.control.resources import Resources
from tenora_platform.db.session import ScopedSession

_log = logging.getLogger(__name__)


@dataclass
class Transaction:
    """The session of this transaction, and its outbox. `actor` is who the audit log names."""

    session: ScopedSession
    resources: Resources
    actor: str
    _jobs: list[tuple[str, uuid.UUID]] = field(default_factory=list)
    _changes: list[Change] = field(default_factory=list)

    def send_job(self, name: str, target: uuid.UUID) -> None:
        """Have a worker run the job `name` on the row `target`, once this transaction has committed."""
        self._jobs.append((name, target))

    def publish(self, change: Change) -> None:
        """Tell the gateways, once this transaction has committed."""
        if change not in self._changes:
            self._changes.append(change)

    def deliver(self) -> None:
        """Empty the outbox. A failure here must not fail what has committed: a lost job is found by the sweeper,
        a lost change by the gateways' time limit on what they remember."""
        try:
            for change in self._changes:
                self.resources.redis.publish(CHANNEL, encode_change(change))
        except redis.RedisError:
            _log.warning("a change could not be published; gateways will see it when their copies expire")
        try:
            for name, target in self._jobs:
                self.resources.queue.send_task(name, args=[str(target)], ignore_result=True)
        except (QueueDown, redis.RedisError):
            _log.warning("a job could not be sent; the sweeper will send it again")


@contextmanager
def transaction(resources: Resources, scope: uuid.UUID | str, actor: str) -> Iterator[Transaction]:
    """A transaction that sees the rows of `scope`. Commits at the end of the block, or rolls back on an exception."""
    with resources.sessions(scope=scope) as session:
        work = Transaction(session=session, resources=resources, actor=actor)
        with session.begin():
            yield work
    work.deliver()
