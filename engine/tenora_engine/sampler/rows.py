"""What the sampler is asked for, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tenora_engine.request import Sequence as Choice
from tenora_engine.wire import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits: the next token of `sequence` after its known tokens and `drafts`, guesses that follow them."""

    sequence: Choice
    drafts: tuple[int, ...] = ()

    @property
    def sampling(self) -> Sampling:
        return self.sequence.request.sampling

    @property
    def position(self) -> int:
        """Index in the sequence of the token to be drawn."""
        return len(self.sequence.tokens) + len(self.drafts)

    @property
    def num_generated(self) -> int:
        return self.sequence.num_generated + len(self.drafts)


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprob: TokenLogprob | None  # when the request asked for it
