"""What a `Submit` must be to be accepted. Everything that can be refused is refused here, before it costs anything.

The gateway validates its public parameters at its own edge; the engine trusts nobody's arithmetic.
"""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from tenora_engine.errors import Refused
from tenora_engine.kv.prefix_cache import CacheScope
from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.wire import FailCode, Sampling, Submit

MAX_CHOICES: Final = 128
MAX_LOGPROBS: Final = 64
MAX_ADAPTERS: Final = 4
MAX_BIAS: Final = 100.0
MAX_ADAPTER_SCALE: Final = 100.0
MIN_WEIGHT: Final = 1e-3
MAX_WEIGHT: Final = 1e3

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this engine can hold."""

    base_fingerprint: str
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int  # tokens, prompt and completion together
    kv_tokens: int  # tokens that fit in one tenant's share of the KV cache
    kv_dtype: str
    num_adapter_slots: int  # that one tenant may use at once


def admit(submit: Submit, route: bytes, now: float, capacity: Capacity) -> Request:
    """The request behind a `Submit`. Raises Refused."""
    if submit.base_fingerprint != capacity.base_fingerprint:
        raise Refused(FailCode.BASE_MISMATCH, "this engine serves another base model")
    sampling = submit.sampling
    _check_prompt(submit, capacity)
    _check_sampling(sampling, capacity.vocab_size)
    _check_adapters(submit, capacity)
    if submit.deadline_s is not None and not submit.deadline_s > 0:
        _invalid("deadline_s must be positive")
    _check_range("weight", submit.weight, MIN_WEIGHT, MAX_WEIGHT)
    max_new_tokens = min(sampling.max_tokens, capacity.max_model_len - len(submit.token_ids))
    needed = len(submit.token_ids) + max_new_tokens
    if needed > capacity.kv_tokens:
        _invalid(f"prompt and completion need room for {needed} tokens; this engine has {capacity.kv_tokens} at most")

    ignored = capacity.eos_token_ids if sampling.ignore_eos else frozenset()
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed & (2**64 - 1)
    scope = CacheScope(submit.cache_salt, submit.base_fingerprint, capacity.kv_dtype)
    request = Request(
        key=RequestKey(route, submit.request_id),
        tenant=submit.tenant,
        prompt=submit.token_ids,
        sampling=msgspec.structs.replace(sampling, seed=seed),
        adapters=submit.adapters,
        cache_root=scope.root(),
        stop_token_ids=frozenset(sampling.stop_token_ids) - ignored,
        max_new_tokens=max_new_tokens,
        deadline=None if submit.deadline_s is None else now + submit.deadline_s,
        weight=submit.weight,
        priority=submit.priority,
    )
    request.sequences = [Sequence(request, choice, list(submit.token_ids)) for choice in range(sampling.n)]
    if sampling.prompt_logprobs is not None:
        request.prompt_logprobs.append(None)
    return request


def _check_prompt(submit: Submit, capacity: Capacity) -> None:
    length = len(submit.token_ids)
    if length == 0:
        _invalid("the prompt has no tokens")
    if length >= capacity.max_model_len:
        _invalid(f"the prompt has {length} tokens; with one to generate the model takes {capacity.max_model_len}")
    if min(submit.token_ids) < 0 or max(submit.token_ids) >= capacity.vocab_size:
        _invalid(f"the prompt holds a token id outside 0..{capacity.vocab_size - 1}")


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    _check_range("max_tokens", sampling.max_tokens, 0, math.inf)
    _check_range("temperature", sampling.temperature, 0, 2)
    _check_range("top_p", sampling.top_p, 0, 1)
    _check_range("min_p", sampling.min_p, 0, 1)
    _check_range("typical_p", sampling.typical_p, 0, 1)
    _check_range("top_k", sampling.top_k, 0, math.inf)
    _check_range("n", sampling.n, 1, MAX_CHOICES)
    _check_range("presence_penalty", sampling.presence_penalty, -2, 2)
    _check_range("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _check_range("repetition_penalty", sampling.repetition_penalty, 0, 10)
    _check_range("min_tokens", sampling.min_tokens, 0, sampling.max_tokens)
    _check_range("logprobs", sampling.logprobs or 0, 0, min(MAX_LOGPROBS, vocab_size))
    _check_range("prompt_logprobs", sampling.prompt_logprobs or 0, 0, min(MAX_LOGPROBS, vocab_size))
    if 0 in (sampling.top_p, sampling.typical_p, sampling.repetition_penalty):
        _invalid("top_p, typical_p and repetition_penalty must be above 0")
    for token_id, bias in sampling.logit_bias.items():
        _check_range("logit_bias: a token id", token_id, 0, vocab_size - 1)
        _check_range(f"logit_bias of token {token_id}", bias, -MAX_BIAS, MAX_BIAS)
    for token_id in sampling.stop_token_ids:
        _check_range("stop_token_ids: a token id", token_id, 0, vocab_size - 1)


def _check_adapters(submit: Submit, capacity: Capacity) -> None:
    uses = submit.adapters
    if len(uses) > min(MAX_ADAPTERS, capacity.num_adapter_slots):
        _invalid(f"{len(uses)} adapters in one request; this engine applies {MAX_ADAPTERS} at most")
    if len({use.digest for use in uses}) < len(uses):
        _invalid("an adapter is named twice")
    for use in uses:
        if not _DIGEST.fullmatch(use.digest):
            _invalid("an adapter's digest is not a SHA-256 in lower-case hex")
        _check_range("adapter scale", use.scale, -MAX_ADAPTER_SCALE, MAX_ADAPTER_SCALE)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    """NaN lies in no range."""
    if not low <= value <= high:
        _invalid(f"{name} is {value}; it must lie in {low}..{high}")


def _invalid(message: str) -> NoReturn:
    raise Refused(FailCode.INVALID, message)
