"""Blocks of the paged KV cache: reference counts and a free queue whose order is the eviction order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

# Never handed out and never written: block tables are padded with it.
NULL_BLOCK: Final = 0


class BlockPool:
    """Blocks 1..num_blocks. A block is free (no holder; its content may still be found again) or held."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._holders = [0] * (num_blocks + 1)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def take(self, count: int) -> list[int]:
        """The `count` longest free blocks, each with one holder. The caller checks `num_free` first."""
        assert 0 <= count <= len(self._free)
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block, taking it off the free queue if it lay there."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a holder of each block. Blocks left without one go to the end of the free queue, in the given order."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} has no holder"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None
