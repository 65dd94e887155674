"""The contract between gateway and engine: msgspec structs, in msgpack, over ZeroMQ.

An engine binds a ROUTER socket; each gateway connects a DEALER socket. A frame holds one message.

    gateway -> engine   Hello | Submit | Abort | Heartbeat | Goodbye   (`encode`, `decode_to_engine`)
    engine -> gateway   Step | Status                                  (`encode`, `decode_to_gateway`)

Rules both sides keep:

* An engine sends at most one `Step` per engine step and gateway; it holds the news of all its requests.
* Every `Submit` ends in exactly one terminal event: an `Output` with `final=True`, or a `Failed`.
  An `Abort` of a live request ends in an `Output` with `finish_reason=abort` that carries the exact usage.
* Usage is cumulative and exact: the last message of a request holds its total.
* A gateway sends `Heartbeat` every `HEARTBEAT_S`; silent for `GATEWAY_TIMEOUT_S`, its requests are aborted.
  An engine sends `Status` every `HEARTBEAT_S`; silent for `ENGINE_TIMEOUT_S`, its requests are failed over.
* Fields are only ever added, at the end and with a default. Golden bytes: `tests/contracts/`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

PROTOCOL_VERSION: Final = 1
HEARTBEAT_S: Final = 0.5
GATEWAY_TIMEOUT_S: Final = 5.0
ENGINE_TIMEOUT_S: Final = 3.0
# So begins the message of a failure for which the request's grammar is to blame.
GRAMMAR_REFUSED: Final = "The grammar cannot be served: "


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # an end-of-sequence or stop token; a stop string is the gateway's to see
    LENGTH = "length"  # max_tokens or the context window reached
    ABORT = "abort"  # the gateway asked, or the deadline passed


class FailCode(StrEnum):
    """Why a request failed. The gateway maps each to one HTTP status."""

    INVALID = "invalid"  # the request can never run: too long, token id outside the vocabulary, ...
    BASE_MISMATCH = "base_mismatch"  # this engine serves another base model
    ADAPTER_UNAVAILABLE = "adapter_unavailable"  # missing, corrupt or not loadable
    OVERLOADED = "overloaded"  # the waiting queue is full
    SHUTTING_DOWN = "shutting_down"
    NUMERICAL = "numerical_error"  # NaN or Inf logits
    INTERNAL = "internal"


class Priority(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class GrammarKind(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"


class Tier(StrEnum):
    """Where an adapter's weights lie, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class AdapterUse(msgspec.Struct, frozen=True):
    """One adapter applied to a request: `digest` names the immutable version (lower-case hex SHA-256)."""

    digest: str
    scale: float = 1.0


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen. Validated at the gateway's edge; the engine refuses what is out of range."""

    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    seed: int | None = None  # None: the engine draws one
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()  # the base model's own end tokens included
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    logprobs: int | None = None  # alternatives per token beside the sampled one; None is off
    prompt_logprobs: int | None = None
    typical_p: float = 1.0


class Grammar(msgspec.Struct, frozen=True):
    """What the text of every choice must look like. `source` by kind: nothing for json_object; a schema (JSON Schema
    2020-12); an expression (ECMA-262) that the whole text matches; a JSON array of texts; rules whose first is `root`
    (GBNF).
    """

    kind: GrammarKind
    source: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    gateway_id: str
    protocol: int = PROTOCOL_VERSION


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    gateway_id: str


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The gateway is leaving: abort what it still has running."""

    gateway_id: str


class Submit(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    request_id: str
    token_ids: list[int]
    sampling: Sampling
    tenant: str  # fairness and per-tenant caps are counted on it
    cache_salt: bytes  # server-made, see `tenora_platform.gateway.salt`
    base_fingerprint: str
    adapters: tuple[AdapterUse, ...] = ()  # empty: the base itself
    weight: float = 1.0  # the tenant's share
    priority: Priority = Priority.INTERACTIVE
    grammar: Grammar | None = None
    deadline_s: float | None = None  # seconds from receipt; then the request is aborted


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one request so far. `cached` is the part of `prompt` found in the prefix cache."""

    prompt: int
    cached: int
    completion: int  # over all choices


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


class Output(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice. `token_ids` may be empty (an abort, say).

    An end or stop token is the last of `token_ids` and is counted in the usage; it is not text for the client.
    Log-probabilities are of the model's own distribution, before temperature, penalties and bias.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    usage: Usage
    finish_reason: FinishReason | None = None  # of this choice
    final: bool = False  # the request's terminal event
    logprobs: list[TokenLogprob] | None = None  # one per token id
    prompt_logprobs: list[TokenLogprob | None] | None = None  # once, with the first output


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """The request's terminal event when it could not be served. `message` is safe to show its tenant."""

    request_id: str
    code: FailCode
    message: str
    retryable: bool
    usage: Usage


class Step(msgspec.Struct, frozen=True, tag="step"):
    instance_id: str
    outputs: list[Output] = msgspec.field(default_factory=list)
    failures: list[Failed] = msgspec.field(default_factory=list)


class ResidentAdapter(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    tier: Tier
    idle_s: float  # seconds since its last use


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What an engine says of itself, twice a second and in answer to `Hello`."""

    engine_id: str  # stable name of the replica
    instance_id: str  # new at every start of the process
    base_fingerprint: str
    build: str
    max_model_len: int  # prompt + completion, tokens
    block_size: int  # tokens
    kv_blocks_total: int
    kv_blocks_free: int
    running: int
    waiting: int
    load_tokens: int  # tokens still to compute for all accepted requests, as far as known
    max_waiting: int
    adapters: list[ResidentAdapter] = msgspec.field(default_factory=list)
    draining: bool = False
    protocol: int = PROTOCOL_VERSION


ToEngine = Hello | Submit | Abort | Heartbeat | Goodbye
ToGateway = Step | Status

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)


def encode(message: ToEngine | ToGateway) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(frame: bytes | memoryview) -> ToEngine:
    """Raises msgspec.DecodeError (or its child ValidationError) on anything that is not a message."""
    return _to_engine.decode(frame)


def decode_to_gateway(frame: bytes | memoryview) -> ToGateway:
    """Raises msgspec.DecodeError (or its child ValidationError) on anything that is not a message."""
    return _to_gateway.decode(frame)
