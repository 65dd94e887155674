"""The gateway's usage journal: durable before a request is dispatched, and again before its answer ends.

One thread owns the SQLite file and commits for all requests together (group commit): a request that waits for its
intent or its settlement waits for one fsync, shared with everyone who asked in the meantime.

**What a crash can cost** (`kill -9`, power loss): counts of running requests are written at once when the first
output arrives, and at least every FLUSH_S after that. Recovered requests are billed with the last counts written, so
at most the tokens of the last FLUSH_S, plus one commit, are not billed. Nothing is billed twice and no request that
was answered to its end is lost: its settlement was on disk before the final chunk was sent.

    SpoolError   the disk refused; nothing was written
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from tenora_platform.usage.event import UsageEvent
from tenora_platform.usage.spool_file import Progress, SpoolFile, open_spool

FLUSH_S: Final = 1.0
_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class SpoolError(Exception):
    """The journal could not be written."""


@dataclass(frozen=True)
class _Operation:
    apply: Callable[[SpoolFile], Any]
    done: asyncio.Future[Any] | None  # None: nobody waits


_STOP: Final = _Operation(lambda _file: None, None)


class Spool:
    """`start` before use. Every coroutine returns once its change is on disk; each raises SpoolError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[_Operation] = queue.SimpleQueue()
        self._progress: dict[UUID, Progress] = {}
        self._progress_lock = threading.Lock()
        self._advanced: set[UUID] = set()  # requests of which a first count was handed over
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.settled = asyncio.Event()  # something waits to be shipped

    async def start(self) -> None:
        """Open this process's file and take over what dead processes left. Raises SpoolError."""
        self._loop = asyncio.get_running_loop()
        try:
            file = await asyncio.to_thread(open_spool, self._folder)
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"cannot open the usage journal in {self._folder}: {error}") from error
        self._thread = threading.Thread(target=self._write, args=(file,), name="usage-spool", daemon=True)
        self._thread.start()
        self.settled.set()

    async def stop(self) -> None:
        """Write what is queued and close the file. What was not shipped is shipped by the next process."""
        if self._thread is not None:
            self._queue.put(_STOP)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def intend(self, event: UsageEvent) -> None:
        await self._do(lambda file: file.intend(event))

    def progress(self, progress: Progress) -> None:
        """Note a running request's counts. Never waits."""
        with self._progress_lock:
            self._progress[progress.event_id] = progress
        if progress.event_id not in self._advanced:
            self._advanced.add(progress.event_id)
            self._queue.put(_Operation(lambda _file: None, None))  # wakes the writer: the first counts go to disk now

    async def settle(self, event: UsageEvent) -> None:
        self._forget(event.event_id)
        await self._do(lambda file: file.settle(event))
        self.settled.set()

    async def discard(self, event_id: UUID) -> None:
        self._forget(event_id)
        await self._do(lambda file: file.discard(event_id))

    async def to_ship(self, limit: int) -> list[UsageEvent]:
        return await self._do(lambda file: file.to_ship(limit))

    async def remove(self, event_ids: Sequence[UUID]) -> None:
        await self._do(lambda file: file.remove(event_ids))

    async def set_aside(self, event_id: UUID, reason: str) -> None:
        await self._do(lambda file: file.set_aside(event_id, reason))

    def _forget(self, event_id: UUID) -> None:
        self._advanced.discard(event_id)
        with self._progress_lock:
            self._progress.pop(event_id, None)

    async def _do(self, apply: Callable[[SpoolFile], _Answer]) -> _Answer:
        if self._thread is None or self._loop is None:
            raise SpoolError("the usage journal is closed")
        done: asyncio.Future[_Answer] = self._loop.create_future()
        self._queue.put(_Operation(apply, done))
        return await done

    # The writer thread.

    def _write(self, file: SpoolFile) -> None:
        running = True
        while running:
            batch = self._next_batch()
            running = _STOP not in batch
            with self._progress_lock:
                progress, self._progress = list(self._progress.values()), {}
            if batch or progress:
                self._commit(file, progress, batch)
        file.close()

    def _next_batch(self) -> list[_Operation]:
        """Everything that is queued; nothing after FLUSH_S without any."""
        batch: list[_Operation] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._queue.get(timeout=FLUSH_S))
            while True:
                batch.append(self._queue.get_nowait())
        return batch

    def _commit(self, file: SpoolFile, progress: list[Progress], batch: list[_Operation]) -> None:
        answers: list[Any] = []
        failure: SpoolError | None = None
        try:
            file.begin()
            for counts in progress:
                file.advance(counts)
            answers = [operation.apply(file) for operation in batch]
            file.commit()
        except sqlite3.Error as error:
            _log.critical("the usage journal cannot be written: %s", error)
            failure = SpoolError(f"the usage journal cannot be written: {error}")
            with contextlib.suppress(sqlite3.Error):
                file.rollback()
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, batch, answers, failure)


def _resolve(batch: list[_Operation], answers: list[Any], failure: SpoolError | None) -> None:
    for position, operation in enumerate(batch):
        if operation.done is None or operation.done.done():
            continue
        if failure is not None:
            operation.done.set_exception(failure)
        else:
            operation.done.set_result(answers[position])
