"""From what a client asked to what an engine runs: tokens, sampling, and what it can cost at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenora_engine.wire import Sampling
from tenora_platform.gateway.errors import ContextTooLong, InvalidRequest
from tenora_platform.gateway.limits.policy import Cost
from tenora_platform.gateway.requests import ChatRequest, CompletionRequest, GenerationRequest
from tenora_platform.gateway.structure import Structure, structure_of
from tenora_platform.gateway.tokenizer import Tokenizer

# What "no max_tokens" means. For completions it is OpenAI's own default. For chat OpenAI says "up to the context", but
# what is not bounded has to be reserved: a chat answer ends after this many tokens unless the client says otherwise.
DEFAULT_CHAT_TOKENS = 1024
DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """One prompt per engine request; `sampling` is the same for all of them."""

    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    structure: Structure | None = None

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def cost(self) -> Cost:
        """The most that this can use: each prompt once, and every choice to its last token."""
        tokens = sum(map(len, self.prompts)) + self.num_choices * self.sampling.max_tokens
        return Cost(requests=1, tokens=tokens)


def make_plan(
    asked: GenerationRequest,
    prompts: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    context_length: int,
) -> Plan:
    """Raises InvalidRequest, ContextTooLong. Lengths are in tokens."""
    for prompt in prompts:
        _check_prompt(prompt, vocab_size)
    longest = max(map(len, prompts))
    asked_tokens, default = _max_tokens(asked)
    room = context_length - longest
    if room < (1 if asked_tokens is None else asked_tokens):
        wanted = "" if asked_tokens is None else f" and {asked_tokens} in the answer"
        raise ContextTooLong(
            f"This model's context holds {context_length} tokens; you asked for {longest} in the prompt{wanted}.",
            param="prompt" if isinstance(asked, CompletionRequest) else "messages",
        )
    max_tokens = min(default, room) if asked_tokens is None else asked_tokens
    if asked.min_tokens is not None and asked.min_tokens > max_tokens:
        raise InvalidRequest("'min_tokens' is larger than 'max_tokens'.", param="min_tokens")
    logprobs = _logprobs(asked)
    echo = isinstance(asked, CompletionRequest) and bool(asked.echo)
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=_or(asked.temperature, 1.0),
        top_p=_or(asked.top_p, 1.0),
        top_k=_top_k(asked.top_k, vocab_size),
        min_p=_or(asked.min_p, 0.0),
        typical_p=_or(asked.typical_p, 1.0),
        seed=asked.seed,
        n=asked.n or 1,
        stop_token_ids=_stop_token_ids(asked, tokenizer, vocab_size),
        ignore_eos=bool(asked.ignore_eos),
        min_tokens=asked.min_tokens or 0,
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, 1.0),
        logit_bias=_logit_bias(asked.logit_bias, vocab_size),
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None,
    )
    return Plan(tuple(tuple(prompt) for prompt in prompts), sampling, structure_of(asked))


def _check_prompt(prompt: Sequence[int], vocab_size: int) -> None:
    if not prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt")
    if (largest := max(prompt)) >= vocab_size:
        raise InvalidRequest(f"Token id {largest} is outside the vocabulary of {vocab_size}.", param="prompt")


def _stop_token_ids(asked: GenerationRequest, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """The model's own, unless they are to be ignored, and the client's."""
    chosen = asked.stop_token_ids or []
    if chosen and max(chosen) >= vocab_size:
        raise InvalidRequest(
            f"Token id {max(chosen)} is outside the vocabulary of {vocab_size}.", param="stop_token_ids"
        )
    return tuple(dict.fromkeys([*(() if asked.ignore_eos else tokenizer.eos_ids), *chosen]))


def _max_tokens(asked: GenerationRequest) -> tuple[int | None, int]:
    match asked:
        case ChatRequest():
            return _first(asked.max_completion_tokens, asked.max_tokens), DEFAULT_CHAT_TOKENS
        case CompletionRequest():
            return asked.max_tokens, DEFAULT_COMPLETION_TOKENS
    raise AssertionError(type(asked))


def _logprobs(asked: GenerationRequest) -> int | None:
    match asked:
        case ChatRequest():
            return (asked.top_logprobs or 0) if asked.logprobs else None
        case CompletionRequest():
            return asked.logprobs
    raise AssertionError(type(asked))


def _top_k(top_k: int | None, vocab_size: int) -> int:
    return 0 if top_k is None or top_k < 0 or top_k >= vocab_size else top_k


def _logit_bias(biases: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    chosen = {int(key): value for key, value in (biases or {}).items()}
    for token_id in chosen:
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"Invalid 'logit_bias': key '{token_id}' is outside the vocabulary of {vocab_size}.", param="logit_bias"
            )
    return chosen


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
