"""A read-through cache whose entries are never older than their time to live, however often they are used."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class _Entry(Generic[_Value]):
    value: _Value | None
    loaded_at: float


class ReadThrough(Generic[_Key, _Value]):
    """`get` loads what is missing or too old; None ("there is no such thing") is kept as well.

    Age counts from when a load *began*, so the bound holds for what the database said then. What exists and what
    does not have separate bounds on their number, so that guesses cannot push out what is real. Concurrent misses
    of one key share one load. A load that a `drop` overtook is given to who waits for it, and not kept.
    """

    def __init__(
        self,
        load: Callable[[_Key], Awaitable[_Value | None]],
        *,
        ttl_s: float,
        clock: Callable[[], float],
        max_entries: int = 50_000,
        max_absent: int = 10_000,
    ) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._clock = clock
        self._present: OrderedDict[_Key, _Entry[_Value]] = OrderedDict()
        self._absent: OrderedDict[_Key, _Entry[_Value]] = OrderedDict()
        self._max_entries = max_entries
        self._max_absent = max_absent
        self._loading: dict[_Key, asyncio.Task[_Value | None]] = {}
        self._generation = 0

    async def get(self, key: _Key) -> _Value | None:
        entry = self._present.get(key) or self._absent.get(key)
        if entry is not None and self._clock() - entry.loaded_at < self._ttl_s:
            return entry.value
        task = self._loading.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key, self._generation))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)  # one waiter that goes away must not fail the others

    def drop(self, concerned: Callable[[_Key, _Value | None], bool]) -> None:
        """Forget every entry that `concerned` says yes to."""
        self._generation += 1
        self._loading.clear()
        for entries in (self._present, self._absent):
            for key in [key for key, entry in entries.items() if concerned(key, entry.value)]:
                del entries[key]

    def clear(self) -> None:
        self.drop(lambda _key, _value: True)

    def __len__(self) -> int:
        return len(self._present) + len(self._absent)

    async def _fetch(self, key: _Key, generation: int) -> _Value | None:
        began = self._clock()
        value = await self._load(key)
        if generation == self._generation:
            self._present.pop(key, None)
            self._absent.pop(key, None)
            kept, bound = (self._absent, self._max_absent) if value is None else (self._present, self._max_entries)
            kept[key] = _Entry(value, began)
            while len(kept) > bound:
                kept.popitem(last=False)
        return value

    def _loaded(self, key: _Key, task: asyncio.Task[_Value | None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            task.exception()  # every waiter has it; without any, it is not worth a warning
