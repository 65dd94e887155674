"""What is drawn of a launched step, said when all before it is committed; and how guesses are verified.

At every draft position a token is drawn as it would be if the drafts before it had been said: same seed and position,
penalties that count them, the grammar advanced over them. The drafts that were drawn are accepted, and so is the first
token that differs: tokens and log-probabilities are those of a run without guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.layout import Part
from tenora_engine.request import Constraint
from tenora_engine.sampler import Row, Sampled
from tenora_engine.scheduler import Chunk
from tenora_engine.wire import FailCode, TokenLogprob


@dataclass(frozen=True, slots=True)
class Draw:
    """What is wanted of a part. Parts without one are computed for nobody: their sequence has ended meanwhile."""

    part: Part
    rows: tuple[Row, ...]  # one for each position at which to draw, drafts in order; empty: draw nothing
    masks: Tensor | None  # int32 [rows, ceil(vocab / 32)], the tokens that a grammar allows
    prompt: range  # positions of prompt tokens whose log-probabilities are wanted


@dataclass(frozen=True, slots=True)
class Failure:
    code: FailCode
    message: str


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What came of one chunk. With a failure its values are not to be trusted, and nothing was drawn."""

    chunk: Chunk
    drawn: Sequence[Sampled] = ()  # the accepted drafts, and one token more
    prompt_logprobs: Sequence[TokenLogprob] = ()  # to be added to those of the request
    failure: Failure | None = None


def wanted(part: Part, vocab_size: int) -> Draw:
    """What to draw of a part whose sequence goes on. All tokens before the part's drafts are known now.

    Raises whatever the sequence's grammar raises.
    """
    chunk = part.chunk
    sequence = chunk.sequence
    rows: list[Row] = []
    masks: Tensor | None = None
    if chunk.samples:
        rows = [Row(sequence, chunk.drafts[:count]) for count in range(len(chunk.drafts) + 1)]
        if sequence.constraint is not None:
            masks = torch.empty(len(rows), -(-vocab_size // 32), dtype=torch.int32)
            allowed = _fill(masks, sequence.constraint, chunk.drafts)
            rows, masks = rows[:allowed], masks[:allowed]
    return Draw(part, tuple(rows), masks, _prompt_positions(chunk))


def _fill(masks: Tensor, constraint: Constraint, drafts: Sequence[int]) -> int:
    """One mask for each position that the grammar lets be reached by the drafts before it; how many these are."""
    constraint.fill(masks[0])
    reached, num_accepted = 1, 0
    for draft in drafts:
        if not constraint.accept(draft):
            break
        num_accepted += 1
        if constraint.is_terminated:
            break
        constraint.fill(masks[reached])
        reached += 1
    if num_accepted:
        constraint.rollback(num_accepted)
    return reached


def _prompt_positions(chunk: Chunk) -> range:
    """Of the prompt's tokens that this chunk predicts and that are not there yet."""
    sequence = chunk.sequence
    request = sequence.request
    if not sequence.wants_prompt_logprobs:
        return range(0)
    return range(max(chunk.start + 1, len(request.prompt_logprobs)), min(chunk.end, len(request.prompt) - 1) + 1)


def accepted(drafts: Sequence[int], sampled: Iterable[Sampled]) -> list[Sampled]:
    """As many of the drawn tokens as a run without drafts would have drawn."""
    taken: list[Sampled] = []
    for position, token in enumerate(sampled):
        taken.append(token)
        if position == len(drafts) or token.token_id != drafts[position]:
            break
    return taken
