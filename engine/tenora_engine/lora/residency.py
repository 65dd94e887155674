"""Which adapters are where: absent, loading, on the host, in a slot. The scheduler's second resource."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from tenora_engine.errors import AdapterUnavailable
from tenora_engine.lora.loader import Loaded
from tenora_engine.lora.slots import SlotTable
from tenora_engine.lora.weights import AdapterWeights, DeviceSlots
from tenora_engine.scheduler import Pin
from tenora_engine.wire import AdapterUse, ResidentAdapter, Tier


class Loader(Protocol):
    def start(self, digest: str) -> None:
        """Begin to load; the end comes out of `poll`, once."""

    def poll(self) -> list[Loaded]: ...


@dataclass(frozen=True, slots=True)
class LoadFailure:
    digest: str
    error: AdapterUnavailable


class Residency:
    """Adapters on the host (bounded, those of live requests are kept) and in slots (bounded, pinned ones are kept).

    The host holds every adapter that has a slot, so that losing its slot costs an adapter no second load.
    """

    def __init__(
        self, slots: DeviceSlots, num_slots: int, host_capacity: int, loader: Loader, clock: Callable[[], float]
    ) -> None:
        assert host_capacity >= num_slots
        self._slots = slots
        self._table = SlotTable(num_slots)
        self._loader = loader
        self._clock = clock
        self._host_capacity = host_capacity
        self._host: OrderedDict[str, AdapterWeights] = OrderedDict()  # least recently used first
        self._host_used: dict[str, float] = {}
        self._loading: set[str] = set()
        self._wanted: Counter[str] = Counter()  # live requests per adapter
        self._quarantined: set[str] = set()

    def want(self, uses: Iterable[AdapterUse]) -> None:
        """A request that uses these was accepted. Raises AdapterUnavailable for one that is quarantined."""
        digests = [use.digest for use in uses]
        if not self._quarantined.isdisjoint(digests):
            raise AdapterUnavailable("the adapter produced values that are not finite and is set aside")
        self._wanted.update(digests)

    def unwant(self, uses: Iterable[AdapterUse]) -> None:
        """Such a request has ended."""
        for use in uses:
            self._wanted[use.digest] -= 1
            if not self._wanted[use.digest]:
                del self._wanted[use.digest]

    def quarantine(self, digest: str) -> None:
        """Serve this adapter no more, until a restart: it gave NaN or infinity."""
        self._quarantined.add(digest)

    def collect(self) -> list[LoadFailure]:
        """Take in what the loader has finished; the failures, for their requests to end."""
        failures = []
        for loaded in self._loader.poll():
            self._loading.discard(loaded.digest)
            if isinstance(loaded.result, AdapterUnavailable):
                failures.append(LoadFailure(loaded.digest, loaded.result))
            else:
                self._host[loaded.digest] = loaded.result
                self._host_used[loaded.digest] = self._clock()
        return failures

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool, insist: bool = False) -> Pin:
        digests = [use.digest for use in uses]
        absent = [digest for digest in digests if digest not in self._host]
        if absent:
            on_their_way = [self._start_load(digest, keep=digests, insist=insist) for digest in absent]
            return Pin.LOADING if all(on_their_way) else Pin.NO_ROOM
        homeless = [digest for digest in digests if self._table.find(digest) is None]
        if homeless:
            if not may_place or self._table.num_short(digests) > 0:
                return Pin.NO_SLOT
            for digest in homeless:
                slot = self._table.place(digest, keep=digests)
                self._slots.put(slot.index, self._host[digest])
        now = self._clock()
        for digest in digests:
            self._table.pin(digest, now)
            self._host.move_to_end(digest)
            self._host_used[digest] = now
        return Pin.PINNED

    def drain_for(self, claims: Iterable[tuple[AdapterUse, ...]]) -> frozenset[str]:
        wanted = {use.digest for uses in claims for use in uses}
        return frozenset(self._table.fewest_pins(max(0, self._table.num_short(wanted)), keep=wanted))

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None:
        now = self._clock()
        for use in uses:
            self._table.unpin(use.digest, now)
            self._host_used[use.digest] = now

    def slot_of(self, digest: str) -> int:
        """Slot of a pinned adapter."""
        slot = self._table.find(digest)
        assert slot is not None
        assert slot.pins > 0
        return slot.index

    @property
    def num_pins(self) -> int:
        return sum(slot.pins for slot in self._table.slots)

    def residents(self) -> list[ResidentAdapter]:
        now = self._clock()
        return [
            ResidentAdapter(
                digest=digest,
                tier=Tier.HOST if self._table.find(digest) is None else Tier.DEVICE,
                idle_s=max(0.0, now - self._host_used[digest]),
            )
            for digest in self._host
        ]

    def _start_load(self, digest: str, keep: Collection[str], *, insist: bool) -> bool:
        """Load it if there is room for it on the host, or room can be made. Whether it is on its way."""
        if digest in self._loading:
            return True
        if len(self._host) + len(self._loading) >= self._host_capacity and not self._evict_from_host(keep, insist):
            return False
        self._loading.add(digest)
        self._loader.start(digest)
        return True

    def _evict_from_host(self, keep: Collection[str], insist: bool) -> bool:
        """Forget the longest unused adapter that no live request wants; if there is none and `insist`, one that is
        only waited with. Never a pinned one: a launched step may still read it after its request has ended."""
        idle = [digest for digest in self._host if digest not in keep and not self._is_pinned(digest)]
        unwanted = [digest for digest in idle if digest not in self._wanted]
        for digest in unwanted or (idle if insist else []):
            self._table.drop(digest)
            del self._host[digest]
            del self._host_used[digest]
            return True
        return False

    def _is_pinned(self, digest: str) -> bool:
        slot = self._table.find(digest)
        return slot is not None and slot.pins > 0
