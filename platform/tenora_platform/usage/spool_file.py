"""One gateway process's usage journal: a SQLite file that says what each request has cost so far.

A row is an event as it would be billed if the process died now: outcome `recovered`, the last counts known. It is
written before the request goes to an engine, its counts grow, and settlement replaces it by the final event.

A file belongs to the process that holds the lock beside it (`<name>.lock`, flock). The lock of a dead process is
free, which is how the next one finds what it left behind.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec

from tenora_platform.usage.event import UsageEvent

_SUFFIX: Final = ".sqlite"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS usage (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id BLOB NOT NULL UNIQUE,
    event BLOB NOT NULL,
    settled INTEGER NOT NULL,
    refusal TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS usage_to_ship ON usage (position) WHERE settled = 1 AND refusal IS NULL;
"""
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UsageEvent).decode


@dataclass(frozen=True)
class Progress:
    """What a running request has cost up to `at`."""

    event_id: UUID
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    at: datetime


class SpoolFile:
    """Not thread-safe. Nothing is durable until `commit`, which returns once the disk has it."""

    def __init__(self, path: Path) -> None:
        """Open or make the file at `path`, locked. Raises BlockingIOError when a living process has it."""
        self.path = path
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
        except BaseException:
            os.close(self._lock)
            raise

    def begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def intend(self, event: UsageEvent) -> None:
        """Begin a request. `event` is what is billed should nothing more be heard of it."""
        self._database.execute(
            "INSERT INTO usage (event_id, event, settled) VALUES (?, ?, 0)", (event.event_id.bytes, _encode(event))
        )

    def advance(self, progress: Progress) -> None:
        """Replace a running request's counts. One that was settled already stays as it is."""
        row = self._database.execute(
            "SELECT event FROM usage WHERE event_id = ? AND settled = 0", (progress.event_id.bytes,)
        ).fetchone()
        if row is None:
            return
        event = msgspec.structs.replace(
            _decode(row[0]),
            prompt_tokens=progress.prompt_tokens,
            cached_tokens=progress.cached_tokens,
            completion_tokens=progress.completion_tokens,
            finished_at=progress.at,
        )
        self._database.execute("UPDATE usage SET event = ? WHERE event_id = ?", (_encode(event), event.event_id.bytes))

    def settle(self, event: UsageEvent) -> None:
        """The final event. The first settlement of a request counts."""
        self._database.execute(
            "INSERT INTO usage (event_id, event, settled) VALUES (?, ?, 1) ON CONFLICT (event_id) DO UPDATE "
            "SET event = excluded.event, settled = 1 WHERE settled = 0",
            (event.event_id.bytes, _encode(event)),
        )

    def discard(self, event_id: UUID) -> None:
        """Forget a request that no engine accepted."""
        self._database.execute("DELETE FROM usage WHERE event_id = ? AND settled = 0", (event_id.bytes,))

    def to_ship(self, limit: int) -> list[UsageEvent]:
        """Settled events in the order in which their requests began."""
        rows = self._database.execute(
            "SELECT event FROM usage WHERE settled = 1 AND refusal IS NULL ORDER BY position LIMIT ?", (limit,)
        )
        return [_decode(row[0]) for row in rows]

    def remove(self, event_ids: Iterable[UUID]) -> None:
        """Forget events that the database has."""
        self._database.executemany("DELETE FROM usage WHERE event_id = ?", [(e.bytes,) for e in event_ids])

    def set_aside(self, event_id: UUID, reason: str) -> None:
        """Keep an event that the database refuses, out of the way of the others, for a person to look at."""
        self._database.execute("UPDATE usage SET refusal = ? WHERE event_id = ?", (reason, event_id.bytes))

    def leftovers(self) -> list[UsageEvent]:
        """Everything in a dead process's file, running requests as they are billed now."""
        return [_decode(row[0]) for row in self._database.execute("SELECT event FROM usage ORDER BY position")]

    def close(self) -> None:
        """Leave the file to the next process; without any row in it, it is deleted."""
        if self._database.execute("SELECT 1 FROM usage LIMIT 1").fetchone() is None:
            self.delete()
            return
        self._database.close()
        os.close(self._lock)

    def delete(self) -> None:
        self._database.close()
        for file in (self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm"), self.path.with_suffix(".lock")):
            file.unlink(missing_ok=True)
        os.close(self._lock)


def open_spool(folder: Path) -> SpoolFile:
    """A new file for this process, holding also what dead processes left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = SpoolFile(folder / f"spool-{uuid4().hex}{_SUFFIX}")
    for path in sorted(folder.glob(f"spool-*{_SUFFIX}")):
        if path != own.path:
            _adopt(own, path)
    return own


def _adopt(own: SpoolFile, path: Path) -> None:
    """Move a dead process's rows. Dying half-way leaves them in both files: the event id makes them one again."""
    try:
        dead = SpoolFile(path)
    except BlockingIOError:
        return
    except sqlite3.DatabaseError as error:
        _log.critical("the usage journal %s is damaged and was left as it is: %s", path, error)
        return
    events: Sequence[UsageEvent] = dead.leftovers()
    own.begin()
    for event in events:
        own.settle(event)
    own.commit()
    dead.delete()
    if events:
        _log.warning("recovered %d requests from %s", len(events), path.name)
