"""One step as the scheduler hands it out, and the ports through which it asks for what it does not decide itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from tenora_engine.request import Sequence
from tenora_engine.wire import AdapterUse


@dataclass(eq=False, slots=True)
class Chunk:
    """Compute positions `start .. start + length` of a sequence: known tokens, at most one that the launched step
    before is about to draw, then `drafts`, the guesses that follow. Never changed once it is planned; not frozen
    because one is made for every running sequence in every step."""

    sequence: Sequence
    start: int
    length: int
    samples: bool  # reaches the end of what is known or surely drawn: the next token is to be drawn
    attempt: int  # `sequence.attempt` at the time: tells whether what is written still counts
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.length


class Swap(NamedTuple):
    """One block in two places."""

    device: int
    host: int


class BlockCopy(NamedTuple):
    source: int  # device blocks both
    target: int


@dataclass(eq=False, slots=True)
class Plan:
    """One step. Before it computes, the executor copies: `swap_out` (device to host), then `swap_in` (host to device),
    then `copies` (device to device); within one of the three the order does not matter. Each copy is made once, also
    when a chunk has to be computed a second time."""

    number: int  # grows by one from plan to plan
    chunks: tuple[Chunk, ...]
    swap_out: tuple[Swap, ...] = ()
    swap_in: tuple[Swap, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    num_preempted: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing to run. It has to be retired all the same."""
        return not (self.chunks or self.swap_out or self.swap_in or self.copies)


class Pin(StrEnum):
    """Whether a sequence's adapters lie where the step can use them."""

    PINNED = "pinned"
    LOADING = "loading"
    NO_ROOM = "no_room"  # not loaded: the host holds nothing that could be forgotten
    NO_SLOT = "no_slot"  # loaded, but running sequences hold every slot


class Adapters(Protocol):
    """The second scarce resource. Pinned adapters keep their slot until they are unpinned."""

    def pin(self, uses: tuple[AdapterUse, ...], *, may_place: bool, insist: bool = False) -> Pin:
        """Pin all of `uses` or none. Without `may_place` only adapters that have a slot already can be pinned.
        `insist`: make room on the host at the expense of adapters that others wait with."""

    def unpin(self, uses: tuple[AdapterUse, ...]) -> None: ...

    def invocation_of(self, digest: str) -> tuple[int, ...] | None:
        """Of a pinned adapter: the tokens that activate it. None: it applies to all of a prompt."""

    def drain_for(self, claims: Iterable[tuple[AdapterUse, ...]]) -> frozenset[str]:
        """The adapters nobody new should pin, so that places become free for those in `claims`: the least used."""


class Drafter(Protocol):
    """Guesses what a sequence will say next. A guess costs computation, never a wrong token."""

    def propose(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        """Up to `limit` (at least 1) tokens that may follow the known ones. Asked only for a sequence of which all
        is known and one token is to be computed."""
