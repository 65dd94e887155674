"""What the scheduler may hand out, and how long it may let somebody wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    max_sequences: int  # running at once
    max_batch_tokens: int  # computed in one step
    tenant_blocks: int | None = None  # of the KV cache, that one tenant's sequences may hold
    tenant_adapters: int | None = None  # of one tenant, in use at once
    # One whose turn it is and who lacks blocks or a slot is passed by others for so long (seconds), then by nobody.
    patience_s: float = 5.0
    # While requests of the batch class wait, one of them is first in line at least so often.
    batch_patience_s: float = 30.0
    # One who lacks blocks is passed only by tenants that received no more than this above its own counter.
    lead: float = 8192.0

    def __post_init__(self) -> None:
        # Then every running sequence can decode in every step, whatever prompts are being read.
        assert self.max_batch_tokens >= self.max_sequences > 0
