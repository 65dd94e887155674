"""A request and its choices, as the engine carries them. Pure state: no torch, no clock, no socket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tenora_engine.kv.prefix_cache import block_key, parent_with_adapters
from tenora_engine.wire import AdapterUse, FinishReason, Priority, Sampling, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Who asked, and under which id: request ids are each gateway's own."""

    route: bytes
    request_id: str


class Constraint(Protocol):
    """What one sequence may say next, by its grammar. Knows the tokens that were committed, and keeps them through a
    preemption."""

    def fill(self, mask: Any) -> None:
        """Write the allowed tokens to `mask`, int32 [ceil(vocab / 32)]: one bit per token id, 1 for allowed."""

    def accept(self, token_id: int) -> bool:
        """Go on by one token. False: the grammar does not allow it, and nothing has changed."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""

    def forced_text(self) -> str:
        """The text that must follow, whatever the model says; empty where there is a choice."""

    @property
    def is_terminated(self) -> bool:
        """The text is complete and an end token was accepted."""


class SequenceState(StrEnum):
    WAITING = "waiting"  # never run, or preempted
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """One accepted `Submit`: what is asked, and what all its choices share."""

    key: RequestKey
    tenant: str
    prompt: list[int]
    sampling: Sampling  # with a seed
    adapters: tuple[AdapterUse, ...]
    cache_root: bytes  # of the base's own KV: adapters have their part in the keys from where they apply
    stop_token_ids: frozenset[int]
    max_new_tokens: int  # max_tokens, cut at the context window
    deadline: float | None = None  # on the engine's monotonic clock
    weight: float = 1.0  # the tenant's share, relative to others
    priority: Priority = Priority.INTERACTIVE
    ready: bool = True  # False while its grammar is compiled: nothing of it is scheduled
    # Of each adapter, the first position that it changes; None: it changes none. Set when they are loaded.
    starts: tuple[int | None, ...] = ()
    sequences: list[Sequence] = field(default_factory=list)
    cached_tokens: int = 0
    # Log-probabilities of the prompt by position, as far as computed; the first token has none.
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)

    @property
    def activations(self) -> list[tuple[AdapterUse, int]]:
        """The adapters that change anything, and from which position on."""
        uses = zip(self.adapters, self.starts, strict=True)  # strict: nobody asks before they are loaded
        return [(use, start) for use, start in uses if start is not None]

    @property
    def usage(self) -> Usage:
        """What it has cost so far: nothing before its first step, so that nobody pays for waiting."""
        begun = any(sequence.admitted_before for sequence in self.sequences)
        completion = sum(sequence.num_generated for sequence in self.sequences)
        return Usage(prompt=len(self.prompt) if begun else 0, cached=self.cached_tokens, completion=completion)

    @property
    def finished(self) -> bool:
        return all(sequence.state is SequenceState.FINISHED for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of a request. Computed tokens chase known ones: that is all the scheduler does.

    A step can be planned before the results of the step before it are known. So there are tokens that launched steps
    compute (`num_planned` runs ahead of `num_computed`), and tokens that they draw and nobody knows yet
    (`num_unknown`, the end of a longer list than `tokens`).
    """

    request: Request
    choice: int
    tokens: list[int]  # known: the prompt, then what was generated
    state: SequenceState = SequenceState.WAITING
    num_computed: int = 0  # tokens whose keys and values are known to lie in `blocks`
    num_planned: int = 0  # these, and the tokens of launched chunks
    num_unknown: int = 0  # tokens that launched chunks will draw
    blocks: list[int] = field(default_factory=list)
    num_published: int = 0  # blocks offered to the prefix cache
    generated: Counter[int] = field(default_factory=Counter)  # how often each token was generated
    constraint: Constraint | None = None
    finish_reason: FinishReason | None = None
    order: int = 0  # of arrival, among all sequences of the engine
    admitted_before: bool = False
    num_charged: int = 0  # prompt tokens that its tenant was charged for, or found in the cache
    num_known_at_start: int = 0  # tokens when it was admitted the last time
    attempt: int = 0  # grows when what was computed is thrown away: chunks launched before do not count
    num_preemptions: int = 0
    host_blocks: list[int] = field(default_factory=list)  # where `num_planned` tokens lie while it is swapped out
    _keys: list[bytes] = field(default_factory=list)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_pending(self) -> int:
        """Tokens to hand out: known or surely drawn, and in no launched chunk. Not above zero while drafts are."""
        return len(self.tokens) + self.num_unknown - self.num_planned

    @property
    def ends_with_what_is_launched(self) -> bool:
        """It surely reaches its last token with what launched chunks will draw."""
        return self.num_unknown > 0 and self.num_generated + self.num_unknown >= self.request.max_new_tokens

    @property
    def waits_for_first_choice(self) -> bool:
        """The other choices of a request start when the first one's prompt is computed, for them too."""
        first = self.request.sequences[0]
        return (
            self is not first
            and first.state is not SequenceState.FINISHED
            and first.num_computed < len(self.request.prompt)
            and self.num_generated == 0
        )

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The first choice computes them for all; once they are there a recompute need not."""
        wanted = self.request.sampling.prompt_logprobs is not None and self.choice == 0
        return wanted and len(self.request.prompt_logprobs) < len(self.request.prompt)

    def append(self, token_id: int) -> None:
        """Take a generated token, and finish if it is the last."""
        assert self.state is not SequenceState.FINISHED
        self.tokens.append(token_id)
        self.generated[token_id] += 1
        sampling = self.request.sampling
        if token_id in self.request.stop_token_ids and self.num_generated >= sampling.min_tokens:
            self.finish_reason = FinishReason.STOP
        elif self.num_generated >= self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH

    def block_keys(self, count: int, block_size: int) -> list[bytes]:
        """Prefix-cache keys of the first `count` blocks, all of them full. Each is computed once."""
        assert count * block_size <= len(self.tokens)
        activations = self.request.activations if len(self._keys) < count else []
        for index in range(len(self._keys), count):
            parent = self._keys[-1] if self._keys else self.request.cache_root
            begin, end = index * block_size, (index + 1) * block_size
            if starting := [(use, start) for use, start in activations if begin <= start < end]:
                parent = parent_with_adapters(parent, starting)
            self._keys.append(block_key(parent, self.tokens[begin:end]))
        return self._keys[:count]
