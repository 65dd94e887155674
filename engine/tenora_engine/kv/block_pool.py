"""Blocks of the paged KV cache: reference counts and a free queue whose order is the eviction order.

A block without a holder is not always free: a step that was launched while somebody held it may still read or write it.
Such a block is leaving until that step is retired. So a block has one of three states:

    held     somebody's; `holders` says how many
    leaving  nobody's, and a launched step may touch it
    free     may be taken; its content can be found again until then
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

# Never handed out and never written: block tables are padded with it.
NULL_BLOCK: Final = 0


class BlockPool:
    """Blocks 1..num_blocks."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 0
        self.num_blocks = num_blocks
        self._holders = [0] * (num_blocks + 1)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._leaving: dict[int, int] = {}  # block -> the last step that may touch it; in order of the steps
        self._launched = 0
        self._retired = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_leaving(self) -> int:
        """Blocks that will be free without anybody giving up anything."""
        return len(self._leaving)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def is_free(self, block: int) -> bool:
        return block in self._free

    def take(self, count: int) -> list[int]:
        """The `count` longest free blocks, each with one holder. The caller checks `num_free` first."""
        assert 0 <= count <= len(self._free)
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> list[int]:
        """Add a holder to each block. Those that had none, and are free or leaving no more."""
        revived = []
        for block in blocks:
            if self._holders[block] == 0:
                if self._leaving.pop(block, None) is None:
                    del self._free[block]
                revived.append(block)
            self._holders[block] += 1
        return revived

    def release(self, blocks: Iterable[int]) -> list[int]:
        """Drop a holder of each block. Those left without one, which go to the end of the free queue in the given
        order, as soon as no launched step may touch them."""
        given_up = []
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} has no holder"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                given_up.append(block)
        if self._launched == self._retired:
            self._free.update(dict.fromkeys(given_up))
        else:
            self._leaving.update(dict.fromkeys(given_up, self._launched))
        return given_up

    def launch(self, number: int) -> None:
        """From now on step `number`, one more than the last, may touch every block that is held."""
        assert number == self._launched + 1
        self._launched = number

    def retire(self, number: int) -> None:
        """Step `number`, and each before it, touches nothing any more."""
        assert self._retired < number <= self._launched
        self._retired = number
        for block, last in list(self._leaving.items()):
            if last > number:
                break
            del self._leaving[block]
            self._free[block] = None
