"""Which adapters are where, and how they get from the blob store to a slot. The scheduler's second resource.

    absent -> FETCHING -> STORED -> READING -> HOST -> LOADING -> RESIDENT -> EVICTING -> absent

Each arrow is a job of the loader, on a thread of its own, or a decision taken here; no step waits for any of them.
Memory is reserved before a job begins. What fails makes its adapter absent, and ends the requests that use it; the next
request tries again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final, Protocol

from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.loader import Event, Failed, Fetched, Placed, Read
from tenora_engine.lora.metrics import AdapterMetrics
from tenora_engine.lora.retention import Retention
from tenora_engine.lora.slots import Slot, SlotTable
from tenora_engine.lora.weights import AdapterWeights
from tenora_engine.scheduler import Pin
from tenora_engine.wire import AdapterUse, ResidentAdapter, Tier

_MAX_STORED: Final = 256  # adapters in no memory of which it is remembered that their files are here


class State(StrEnum):
    FETCHING = "fetching"  # its files come to this machine
    STORED = "stored"  # they are here, and how much memory it needs is known
    READING = "reading"  # they are read, verified and arranged; room on the host is reserved
    HOST = "host"
    LOADING = "loading"  # it is copied to the device; a slot is reserved
    RESIDENT = "resident"
    EVICTING = "evicting"  # set aside: it goes with its last pin


_NEXT: Final[Mapping[State, frozenset[State | None]]] = {  # None: absent
    State.FETCHING: frozenset({State.STORED, None}),
    State.STORED: frozenset({State.READING, None}),
    State.READING: frozenset({State.HOST, None}),
    State.HOST: frozenset({State.LOADING, State.STORED, None}),
    State.LOADING: frozenset({State.RESIDENT, None}),
    State.RESIDENT: frozenset({State.HOST, State.STORED, State.EVICTING, None}),
    State.EVICTING: frozenset({None}),
}
_ON_HOST: Final = frozenset({State.READING, State.HOST, State.LOADING, State.RESIDENT, State.EVICTING})
_TIERS: Final = {
    State.STORED: Tier.DISK,
    State.READING: Tier.DISK,
    State.HOST: Tier.HOST,
    State.LOADING: Tier.HOST,
    State.RESIDENT: Tier.DEVICE,
}


class Loader(Protocol):
    """Three kinds of jobs, each of which ends in one event of `poll`."""

    def fetch(self, digest: str) -> None: ...

    def read(self, digest: str) -> None: ...

    def place(self, digest: str, weights: AdapterWeights) -> None: ...

    def poll(self) -> list[Event]: ...


class Slots(Protocol):
    def install(self, slot: int, placed: Any) -> None: ...

    def clear(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What adapters may take. The host holds every adapter that has a slot, so that losing its slot costs an adapter no
    second reading."""

    num_slots: int
    num_on_host: int
    host_bytes: float = inf
    device_bytes: float = inf  # what is above `host_bytes` is not used

    def __post_init__(self) -> None:
        assert self.num_on_host >= self.num_slots


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """What requests that use all of `digests` fail with."""

    digests: frozenset[str]
    error: AdapterUnavailable


@dataclass(eq=False, slots=True)
class _Adapter:
    digest: str
    retention: Retention
    state: State = State.FETCHING
    num_bytes: int = 0  # on the host, and at most that on the device; until it was read, by its files
    weights: AdapterWeights | None = None
    asked: bool = False  # by a request whose turn it was, since it was read
    fresh: bool = False  # resident, and not pinned yet by the request that had it loaded

    @property
    def worth(self) -> float:
        return self.retention.worth(self.num_bytes)


class Residency:
    """`want` at a request's arrival begins to fetch, `pin` at its turn brings into a slot, `unwant` lets go."""

    def __init__(
        self, slots: Slots, room: Room, loader: Loader, clock: Callable[[], float], *, files_are_local: bool = True
    ) -> None:
        """`files_are_local`: what was fetched is on this machine's disk."""
        self.metrics = AdapterMetrics()
        self._slots = slots
        self._room = room
        self._tiers = _TIERS if files_are_local else {s: tier for s, tier in _TIERS.items() if tier is not Tier.DISK}
        self._loader = loader
        self._clock = clock
        max_bytes = min(room.device_bytes, room.host_bytes)
        self._table = SlotTable(room.num_slots, lambda digest: self._adapters[digest].worth, max_bytes)
        self._adapters: dict[str, _Adapter] = {}  # those that are not absent
        self._wanted: Counter[str] = Counter()  # live requests per adapter
        self._combined: Counter[frozenset[str]] = Counter()  # live requests that use several adapters
        self._quarantined: set[str] = set()

    # -- what requests do -----------------------------------------------------------------------------------------

    def want(self, uses: Iterable[AdapterUse]) -> None:
        """A request that uses these was accepted: fetch what is absent, long before it may be its turn. Raises
        AdapterUnavailable for one that is quarantined, and for what can never be in memory at once."""
        digests = frozenset(use.digest for use in uses)
        if not self._quarantined.isdisjoint(digests):
            raise AdapterUnavailable("the adapter produced values that are not finite and is set aside")
        if (excess := self._excess(digests)) is not None:
            raise excess
        self._wanted.update(digests)
        if len(digests) > 1:
            self._combined[digests] += 1
        for digest in digests:
            self.metrics.hit(digest, self.tier_of(digest))
            if digest not in self._adapters:
                self._fetch(digest)
            elif (adapter := self._adapters[digest]).state is State.STORED:
                self._read(adapter, keep=digests)

    def unwant(self, uses: Iterable[AdapterUse]) -> None:
        """Such a request has ended."""
        digests = frozenset(use.digest for use in uses)
        for digest in digests:
            self._wanted[digest] -= 1
        self._wanted = +self._wanted
        if len(digests) > 1:
            self._combined[digests] -= 1
            self._combined = +self._combined

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool, insist: bool = False) -> Pin:
        digests = [use.digest for use in uses]
        on_their_way = [self._bring(digest, keep=digests, insist=insist) for digest in digests]
        if not all(on_their_way):
            return Pin.NO_ROOM
        adapters = [self._adapters[digest] for digest in digests]
        if any(adapter.state in (State.FETCHING, State.STORED, State.READING) for adapter in adapters):
            return Pin.LOADING
        homeless = [adapter for adapter in adapters if adapter.state is State.HOST]
        if homeless:
            sizes = {adapter.digest: adapter.num_bytes for adapter in adapters}
            keep = self._held(insist=insist)
            if not may_place or not self._table.has_room(sizes, keep):
                return Pin.NO_SLOT
            for digest in self._table.to_evict(sizes, keep):
                self._leave_slot(self._adapters[digest], State.HOST)
            for adapter in homeless:
                self._load(adapter)
        if any(adapter.state is State.EVICTING for adapter in adapters):
            return Pin.NO_SLOT
        if any(adapter.state is State.LOADING for adapter in adapters):
            return Pin.LOADING
        for adapter in adapters:
            self._table.pin(adapter.digest)
            adapter.fresh = False
            adapter.retention.use(self._clock())
        return Pin.PINNED

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None:
        for use in uses:
            adapter = self._adapters[use.digest]
            self._table.unpin(use.digest)
            adapter.retention.use(self._clock())
            if adapter.state is State.EVICTING and not self._is_pinned(use.digest):
                self._leave_slot(adapter, None)

    def drain_for(self, claims: Iterable[tuple[AdapterUse, ...]]) -> frozenset[str]:
        wanted = {use.digest for uses in claims for use in uses} & self._adapters.keys()
        return frozenset(self._table.victims({digest: self._adapters[digest].num_bytes for digest in wanted}))

    def quarantine(self, digest: str) -> None:
        """Serve this adapter no more, until a restart: it gave NaN or infinity."""
        self._quarantined.add(digest)
        adapter = self._adapters.get(digest)
        if adapter is None or adapter.state in (State.FETCHING, State.READING, State.LOADING):
            return  # `collect` sets it aside
        if self._is_pinned(digest):
            self._move(adapter, State.EVICTING)
        else:
            self._leave_slot(adapter, None)

    # -- what the loader has done ---------------------------------------------------------------------------------

    def collect(self) -> list[LoadFailure]:
        """Take in what the loader has finished; the failures, for their requests to end."""
        failures: list[LoadFailure] = []
        for event in self._loader.poll():
            adapter = self._adapters[event.digest]
            if event.digest in self._quarantined:
                self._leave_slot(adapter, None)
                continue
            match event:
                case Fetched(num_bytes=num_bytes):
                    adapter.num_bytes = num_bytes
                    self._move(adapter, State.STORED)
                    failures += self._excesses(adapter.digest)
                    if self._wanted[adapter.digest] and self._excess({adapter.digest}) is None:
                        self._read(adapter, keep=())
                    self._forget_some()
                case Read(weights=weights, seconds=seconds):
                    adapter.weights, adapter.num_bytes = weights, weights.num_bytes
                    adapter.retention.load_s = seconds
                    self.metrics.loaded(adapter.digest, seconds)
                    self._move(adapter, State.HOST)
                    failures += self._excesses(adapter.digest)
                case Placed(placed=placed):
                    self._slots.install(self._slot(adapter).index, placed)
                    adapter.fresh = True
                    self._move(adapter, State.RESIDENT)
                case Failed(error=error):
                    self._leave_slot(adapter, None)
                    self.metrics.failed(adapter.digest)
                    failures.append(LoadFailure(frozenset({adapter.digest}), error))
        return failures

    # -- what there is to know ------------------------------------------------------------------------------------

    def slot_of(self, digest: str) -> int:
        """Slot of a pinned adapter."""
        slot = self._table.find(digest)
        assert slot is not None
        assert slot.pins > 0
        return slot.index

    def invocation_of(self, digest: str) -> tuple[int, ...] | None:
        weights = self._adapters[digest].weights
        assert weights is not None  # the host holds whatever has a slot
        return weights.invocation

    @property
    def num_pins(self) -> int:
        return sum(slot.pins for slot in self._table.slots)

    @property
    def host_bytes(self) -> int:
        """Those reserved included."""
        return sum(adapter.num_bytes for adapter in self._on_host())

    @property
    def device_bytes(self) -> int:
        """Those reserved included."""
        return self._table.num_bytes

    def state_of(self, digest: str) -> State | None:
        """None: absent."""
        adapter = self._adapters.get(digest)
        return None if adapter is None else adapter.state

    def tier_of(self, digest: str) -> Tier | None:
        state = self.state_of(digest)
        return None if state is None else self._tiers.get(state)

    def residents(self) -> list[ResidentAdapter]:
        """Those that are in a tier, as gateways are to know it."""
        now = self._clock()
        return [
            ResidentAdapter(adapter.digest, tier, max(0.0, now - adapter.retention.last_used))
            for adapter in self._adapters.values()
            if (tier := self._tiers.get(adapter.state)) is not None
        ]

    # -- from state to state --------------------------------------------------------------------------------------

    def _move(self, adapter: _Adapter, state: State | None) -> None:
        assert state in _NEXT[adapter.state], f"{adapter.state} -> {state}"
        if adapter.state in _ON_HOST and (state is None or state not in _ON_HOST):
            adapter.weights = None
            adapter.asked = adapter.fresh = False
        if state is None:
            del self._adapters[adapter.digest]
        else:
            adapter.state = state

    def _bring(self, digest: str, keep: Collection[str], *, insist: bool) -> bool:
        """One whose turn it is asks for it. Whether it is in memory, or on its way there."""
        if digest not in self._adapters:
            self._fetch(digest)
        adapter = self._adapters[digest]
        adapter.asked = True
        return adapter.state is not State.STORED or self._read(adapter, keep, for_turn=True, insist=insist)

    def _fetch(self, digest: str) -> None:
        self._adapters[digest] = _Adapter(digest, Retention(self._clock()))
        self._loader.fetch(digest)

    def _read(self, adapter: _Adapter, keep: Collection[str], *, for_turn: bool = False, insist: bool = False) -> bool:
        """Begin, if there is room on the host or room can be made. Whether it was begun.

        Whoever only waits takes the place of adapters that no live request wants. For one whose turn it is, those are
        forgotten too that came for others whose turn it was not yet, and with `insist` any that nobody has pinned:
        never a pinned one, as a launched step may still read it after its request has ended.
        """
        others = self._on_host()
        idle = [a for a in others if a.digest not in keep and a.state in (State.HOST, State.RESIDENT)]
        idle = [a for a in idle if not self._is_pinned(a.digest)]
        unwanted = [a for a in idle if not self._wanted[a.digest]]
        waiting = [a for a in idle if self._wanted[a.digest] and (insist or (for_turn and not a.asked))]
        candidates = sorted(unwanted, key=lambda a: a.worth) + sorted(waiting, key=lambda a: (a.asked, a.worth))
        num_left, bytes_left = len(others), sum(a.num_bytes for a in others)
        chosen: list[_Adapter] = []
        while num_left + 1 > self._room.num_on_host or bytes_left + adapter.num_bytes > self._room.host_bytes:
            if len(chosen) == len(candidates):
                return False
            chosen.append(candidates[len(chosen)])
            num_left, bytes_left = num_left - 1, bytes_left - chosen[-1].num_bytes
        for other in chosen:
            self.metrics.evicted(other.digest, Tier.HOST)
            self._leave_slot(other, State.STORED)
        self._move(adapter, State.READING)
        self._loader.read(adapter.digest)
        return True

    def _load(self, adapter: _Adapter) -> None:
        """Begin to copy it to the device: there is a free slot."""
        assert adapter.weights is not None
        self._table.place(adapter.digest, adapter.num_bytes)
        self._move(adapter, State.LOADING)
        self._loader.place(adapter.digest, adapter.weights)

    def _leave_slot(self, adapter: _Adapter, state: State | None) -> None:
        """To `state`, out of its slot if it has one."""
        slot = self._table.find(adapter.digest)
        if slot is not None:
            self.metrics.evicted(adapter.digest, Tier.DEVICE)
            self._table.drop(adapter.digest)
            self._slots.clear(slot.index)
        self._move(adapter, state)

    def _forget_some(self) -> None:
        """Of those in no memory, the longest unused beyond _MAX_STORED."""
        stored = [a for a in self._adapters.values() if a.state is State.STORED and not self._wanted[a.digest]]
        for adapter in sorted(stored, key=lambda a: a.retention.last_used)[: max(0, len(stored) - _MAX_STORED)]:
            self._move(adapter, None)

    # -- looking up -----------------------------------------------------------------------------------------------

    def _on_host(self) -> list[_Adapter]:
        return [adapter for adapter in self._adapters.values() if adapter.state in _ON_HOST]

    def _slot(self, adapter: _Adapter) -> Slot:
        slot = self._table.find(adapter.digest)
        assert slot is not None
        return slot

    def _is_pinned(self, digest: str) -> bool:
        slot = self._table.find(digest)
        return slot is not None and slot.pins > 0

    def _held(self, *, insist: bool) -> frozenset[str]:
        """Adapters whose slots are nobody's to take: they are being loaded, or the request that had them loaded has not
        come to its turn again. `insist` does not heed the latter."""
        adapters = [self._adapters[slot.digest] for slot in self._table.slots if slot.digest is not None]
        return frozenset(
            adapter.digest
            for adapter in adapters
            if adapter.state is State.LOADING or (adapter.fresh and self._wanted[adapter.digest] and not insist)
        )

    def _excess(self, digests: Collection[str]) -> AdapterUnavailable | None:
        """What to say when these can never be in memory at once, as far as it is known how large they are."""
        num_bytes = sum(self._adapters[digest].num_bytes for digest in digests if digest in self._adapters)
        limit = self._table.max_bytes
        if num_bytes <= limit:
            return None
        what = "adapter needs" if len(digests) == 1 else "adapters of the request need"
        has = f"this engine has {limit / 2**20:.1f} MiB for adapters"
        return AdapterUnavailable(f"the {what} {num_bytes / 2**20:.1f} MiB; {has}")

    def _excesses(self, digest: str) -> list[LoadFailure]:
        """Of requests that use an adapter whose size has just become known."""
        groups = [frozenset({digest}), *(group for group in self._combined if digest in group)]
        return [LoadFailure(group, excess) for group in groups if (excess := self._excess(group)) is not None]
