"""Logits before temperature: penalties, bias, minimum length, grammar. Each is one operation over all rows.

Formulas as OpenAI documents them (presence, frequency, bias) and as in CTRL (Keskar et al., 2019; repetition).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from tenora_engine.sampler.rows import Row

_BITS: Final = 32  # tokens per word of a mask
# Below all that a bias can do and yet finite: what is ruled out so is drawn if a mask leaves nothing else.
_RULED_OUT: Final = torch.finfo(torch.float32).min

Entry = tuple[int, int, float]  # row, token id, and a value that its rule knows


def shape(logits: Tensor, rows: Sequence[Row], masks: Tensor | None) -> Tensor:
    """Logits from which to draw; the same tensor when no row asks for a change.

    logits: fp32 [rows, vocab]. masks: int32 [rows, ceil(vocab / 32)] or None; bit i of word j allows token 32 j + i.
    Every row allows some token.
    """
    shaped = logits
    for entries, rule in (
        (_repetition(rows), _repeated),
        (_presence_and_frequency(rows), torch.add),
        (_bias(rows), torch.add),
        (_minimum_length(rows), _replaced),
    ):
        columns = list(zip(*entries, strict=True))
        if columns:
            shaped = logits.clone() if shaped is logits else shaped
            _change(shaped, columns, rule)
    if masks is not None:
        shaped = shaped.masked_fill(~allowed(masks.to(logits.device), logits.shape[1]), float("-inf"))
    return shaped


def allowed(masks: Tensor, vocab_size: int) -> Tensor:
    """int32 [rows, words] -> bool [rows, vocab_size]."""
    bits = torch.arange(_BITS, dtype=torch.int32, device=masks.device)
    return (masks[:, :, None] >> bits & 1).bool().flatten(1)[:, :vocab_size]


def _change(logits: Tensor, columns: Sequence[Sequence[float]], rule: Callable[[Tensor, Tensor], Tensor]) -> None:
    """logits[row, token] = rule(logits[row, token], value), for all entries at once; each pair comes once."""
    rows, tokens, values = columns
    places = tuple(torch.tensor([rows, tokens], device=logits.device))
    logits.index_put_(places, rule(logits[places], torch.tensor(values, dtype=logits.dtype, device=logits.device)))


def _repetition(rows: Sequence[Row]) -> Iterator[Entry]:
    """Over prompt and generated."""
    for index, row in enumerate(rows):
        penalty = row.sampling.repetition_penalty
        if penalty != 1:
            yield from ((index, token, penalty) for token in {*row.sequence.tokens, *row.drafts})


def _repeated(logits: Tensor, penalties: Tensor) -> Tensor:
    """A positive logit is divided, a negative one multiplied."""
    penalised = torch.where(logits > 0, logits / penalties, logits * penalties)
    # A tiny penalty overflows, and two infinities differ by NaN, of which no token could be drawn.
    return penalised.clamp(max=torch.finfo(logits.dtype).max)


def _presence_and_frequency(rows: Sequence[Row]) -> Iterator[Entry]:
    """Over what was generated only."""
    for index, row in enumerate(rows):
        presence, frequency = row.sampling.presence_penalty, row.sampling.frequency_penalty
        if presence or frequency:
            counts = row.sequence.generated + Counter(row.drafts) if row.drafts else row.sequence.generated
            yield from ((index, token, -presence - frequency * count) for token, count in counts.items())


def _bias(rows: Sequence[Row]) -> Iterator[Entry]:
    for index, row in enumerate(rows):
        yield from ((index, token, bias) for token, bias in row.sampling.logit_bias.items())


def _minimum_length(rows: Sequence[Row]) -> Iterable[Entry]:
    for index, row in enumerate(rows):
        if row.num_generated < row.sampling.min_tokens:
            yield from ((index, token, _RULED_OUT) for token in row.sequence.request.stop_token_ids)


def _replaced(_logits: Tensor, values: Tensor) -> Tensor:
    return values
