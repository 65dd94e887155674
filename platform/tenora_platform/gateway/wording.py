"""What both endpoints' answers have in common: identity, usage, and log-probabilities as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tenora_adapters.token_bytes import TokenBytes
from tenora_platform.gateway.answer import Piece
from tenora_platform.gateway.tab import Charged

LOWEST_LOGPROB: Final = -9999.0  # JSON has no -Infinity
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Heading:
    """What stands on every chunk of an answer."""

    id: str
    created: int  # Unix seconds
    model: str  # as the client named it
    system_fingerprint: str
    include_usage: bool


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_body(charged: Charged) -> UsageBody:
    return UsageBody(
        prompt_tokens=charged.prompt,
        completion_tokens=charged.completion,
        total_tokens=charged.prompt + charged.completion,
        prompt_tokens_details=PromptDetails(charged.cached),
    )


def fingerprint(base_fingerprint: str, version_digest: str | None, build: str) -> str:
    """`<base>.<adapter version>.<engine build>`, each shortened: exactly what answered."""
    return f"{base_fingerprint[:12]}.{version_digest[:12] if version_digest else 'base'}.{build[:24]}"


def clamped(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def token_text(token_bytes: TokenBytes, token_id: int) -> str:
    """A token on its own, which need not be whole characters; `bytes` beside it are exact."""
    return token_bytes[token_id].decode(errors="replace")


def event(body: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class Voice(Protocol):
    """How one endpoint words an answer."""

    def chunk(self, piece: Piece) -> bytes | None:
        """One server-sent event; None when there is nothing in it for a client."""

    def usage_chunk(self, charged: Charged) -> bytes:
        """The event that `stream_options.include_usage` asks for, after all others."""

    def whole(self, pieces: Sequence[Piece], charged: Charged) -> bytes:
        """The body of an answer that is not streamed, from all its pieces in the order in which they came."""
