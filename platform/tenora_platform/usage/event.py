"""The contract between the gateway that serves a request and the books that bill it: one event per request."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"  # the answer was delivered, whatever its finish_reason
    ABORTED = "aborted"  # the client went away; what was generated until then is counted
    FAILED = "failed"  # the engine or the platform failed; what was generated before is counted
    RECOVERED = "recovered"  # settled from the spool after the gateway itself died


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one request. `event_id` is made by the gateway and unique for ever; instants are aware and UTC.

    A request that ended before any engine accepted it has no event. The billing period of an event is that of
    `finished_at`.
    """

    event_id: UUID
    request_id: str  # shown to the client as the response's id
    tenant_id: UUID
    key_id: UUID
    base_model: str
    adapter: str | None  # its name at the time; None for the base itself
    version_digest: str | None
    endpoint: str  # "chat.completions" | "completions"
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    outcome: Outcome
    started_at: datetime
    finished_at: datetime
