"""From logits to tokens, for all rows of a step at once.

A row's result depends on its own logits, sampling parameters, seed and position, never on its neighbours. The order of
work: bias and penalties, minimum length, temperature, then top-k, top-p and min-p on what is left, then one draw by the
inverse of the cumulative distribution, at a point between 0 and 1 that is a hash of (seed, choice, position).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine.request import Sequence as Choice
from tenora_engine.wire import Sampling, TokenLogprob

# Truncated sampling looks at this many best tokens first, and at the whole vocabulary only if top-p reaches past them.
_CANDIDATES: Final = 512


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprob: TokenLogprob | None  # when the request asked for it


def sample(logits: Tensor, choices: Sequence[Choice]) -> list[Sampled]:
    """Draw one token for each row. logits: fp32 [rows, vocab], finite; `choices`: whose rows they are."""
    shaped = _shape(logits, choices)
    tokens = shaped.argmax(dim=-1)
    drawn = [row for row, choice in enumerate(choices) if not _is_greedy(choice.request.sampling)]
    truncated = [row for row in drawn if _truncates(choices[row].request.sampling, logits.shape[1])]
    whole = sorted(set(drawn) - set(truncated))
    if whole:
        scaled = _scale(shaped[whole], [choices[row] for row in whole])
        tokens[whole] = _draw(scaled.softmax(-1), [choices[row] for row in whole])
    if truncated:
        scaled = _scale(shaped[truncated], [choices[row] for row in truncated])
        tokens[truncated] = _draw_truncated(scaled, [choices[row] for row in truncated], _CANDIDATES)
    return _report(logits, tokens, choices)


def logprobs_of(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log-probability of one given token per row, and of the `num_top` best. logits: fp32 [rows, vocab]."""
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0] - normaliser
    best = logits.topk(num_top)
    best_logprobs = (best.values - normaliser[:, None]).tolist()
    return [
        TokenLogprob(token_id, logprob, tuple(zip(top_ids, top, strict=True)))
        for token_id, logprob, top_ids, top in zip(
            token_ids, chosen.tolist(), best.indices.tolist(), best_logprobs, strict=True
        )
    ]


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that only these three decide. 52 random bits: times any total it stays below the total."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, choice, position), digest_size=8, person=b"tenora.sample")
    return (int.from_bytes(digest.digest(), "little") >> 12) * 2.0**-52


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 or sampling.top_k == 1 or sampling.min_p == 1


def _truncates(sampling: Sampling, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1 or sampling.min_p > 0


def _shape(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Bias, penalties and minimum length; the same tensor when no row asks for any."""
    shaped = logits
    for row, choice in enumerate(choices):
        if _needs_shaping(choice):
            if shaped is logits:
                shaped = logits.clone()
            _shape_row(shaped[row], choice)
    return shaped


def _needs_shaping(choice: Choice) -> bool:
    sampling = choice.request.sampling
    return bool(
        sampling.logit_bias
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or choice.num_generated < sampling.min_tokens
    )


def _shape_row(row: Tensor, choice: Choice) -> None:
    """Change one row in place. Presence and frequency count what was generated, repetition the prompt as well."""
    sampling, generated = choice.request.sampling, choice.generated
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(choice.tokens)), device=row.device)
        values = row[seen]
        penalised = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
        # A tiny penalty overflows, and two infinities differ by NaN, of which no token could be drawn.
        row[seen] = penalised.clamp(max=torch.finfo(row.dtype).max)
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens = torch.tensor(list(generated.keys()), device=row.device)
        counts = torch.tensor(list(generated.values()), device=row.device, dtype=row.dtype)
        row[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        tokens = torch.tensor(list(sampling.logit_bias.keys()), device=row.device)
        row[tokens] += torch.tensor(list(sampling.logit_bias.values()), device=row.device, dtype=row.dtype)
    if choice.num_generated < sampling.min_tokens and choice.request.stop_token_ids:
        row[torch.tensor(sorted(choice.request.stop_token_ids), device=row.device)] = float("-inf")


def _scale(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Logits over temperature, the best at 0: no temperature however small gives infinity or NaN."""
    temperatures = torch.tensor([choice.request.sampling.temperature for choice in choices], device=logits.device)
    return (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None].clamp_min(torch.finfo(torch.float32).tiny)


def _draw(probabilities: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Index of the drawn entry per row: the first whose cumulative probability lies above the row's point."""
    cumulative = probabilities.double().cumsum(-1)
    points = torch.tensor([_point(choice) for choice in choices], dtype=torch.float64, device=probabilities.device)
    points = points * cumulative[:, -1]
    return torch.searchsorted(cumulative, points[:, None], right=True)[:, 0]


def _point(choice: Choice) -> float:
    seed = choice.request.sampling.seed
    assert seed is not None
    return uniform(seed, choice.choice, len(choice.tokens))


def _draw_truncated(scaled: Tensor, choices: Sequence[Choice], width: int) -> Tensor:
    """Draw within top-k, then top-p of what that left, and min-p. scaled: fp32 [rows, vocab], the best at 0.

    Only the `width` best tokens are looked at, as long as all that is to be kept lies among them; a row whose top-p
    reaches further is drawn again from the whole vocabulary.
    """
    vocab_size = scaled.shape[1]
    width = min(width, vocab_size)

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=scaled.device)[:, None]

    samplings = [choice.request.sampling for choice in choices]
    top_k = column([float(min(sampling.top_k or vocab_size, vocab_size)) for sampling in samplings])
    top_p = column([sampling.top_p for sampling in samplings])
    min_p = column([sampling.min_p for sampling in samplings])

    best = scaled.topk(width)  # [rows, width], best first
    in_top_k = torch.arange(width, device=scaled.device) < top_k
    of_top_k = best.values.masked_fill(~in_top_k, float("-inf")).logsumexp(-1, keepdim=True)
    of_all = scaled.logsumexp(-1, keepdim=True)
    probabilities = (best.values - torch.where(top_k <= width, of_top_k, of_all)).exp() * in_top_k
    # Keep a token while those before it hold less than top_p: the best one always stays.
    kept = (probabilities.cumsum(-1) - probabilities < top_p) & (probabilities >= min_p * probabilities[:, :1])
    kept[:, 0] = True
    drawn = _draw(probabilities * kept, choices)
    tokens = best.indices.gather(1, drawn[:, None])[:, 0]

    if width < vocab_size:
        reaches_top_p = probabilities.sum(-1, keepdim=True) >= top_p
        ends_by_min_p = probabilities[:, -1:] < min_p * probabilities[:, :1]
        complete = ((top_k <= width) | reaches_top_p | ends_by_min_p)[:, 0].tolist()
        rest = [row for row, done in enumerate(complete) if not done]
        if rest:
            tokens[rest] = _draw_truncated(scaled[rest], [choices[row] for row in rest], vocab_size)
    return tokens


def _report(logits: Tensor, tokens: Tensor, choices: Sequence[Choice]) -> list[Sampled]:
    token_ids: list[int] = tokens.tolist()
    wanted = [row for row, choice in enumerate(choices) if choice.request.sampling.logprobs is not None]
    logprobs: dict[int, TokenLogprob] = {}
    for row in wanted:
        num_top = choices[row].request.sampling.logprobs or 0
        logprobs[row] = logprobs_of(logits[row : row + 1], [token_ids[row]], num_top)[0]
    return [Sampled(token_id, logprobs.get(row)) for row, token_id in enumerate(token_ids)]
