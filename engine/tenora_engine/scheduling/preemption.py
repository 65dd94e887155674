"""Who gives way when the memory is full, and what becomes of what was computed for him."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenora_engine.fairness import Fairness
from tenora_engine.request import Sequence
from tenora_engine.wire import Priority


@dataclass(frozen=True, slots=True)
class SwapCost:
    """Costs in tokens: how many an average step could compute in the same time."""

    tokens_per_block: float = 1.0  # for one block to go to the host and to come back
    attention_tokens: float = 4096.0  # context at which looking back takes as long as the rest of a token

    def prefers_swap(self, num_blocks: int, num_lost: int, num_tokens: int) -> bool:
        """Whether moving `num_blocks` is cheaper than computing the last `num_lost` of `num_tokens` again."""
        mean_context = num_tokens - num_lost / 2
        recompute = num_lost * (1 + mean_context / self.attention_tokens)
        return num_blocks * self.tokens_per_block < recompute


def worst_first(sequences: Iterable[Sequence], fairness: Fairness) -> list[Sequence]:
    """In the order in which they give way: those that said something since they started before those that did not
    (or a sequence could be preempted for ever without getting on), the batch class before the interactive one, then
    the tenant that received most for its weight, then the youngest."""

    def rank(sequence: Sequence) -> tuple[bool, bool, float, int]:
        request = sequence.request
        spoke = len(sequence.tokens) > sequence.num_known_at_start
        return spoke, request.priority is Priority.BATCH, fairness[request.tenant].counter, sequence.order

    return sorted(sequences, key=rank, reverse=True)
