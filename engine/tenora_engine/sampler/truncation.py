"""Which tokens may be drawn: top-k, then top-p of what that left, min-p, and locally typical sampling of the rest.

A cut is a least value of the logit, found from the sorted values alone: tokens of equal logits are kept or cut
together, and the order that a sort gives to equals cannot change what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine.sampler.race import Race, race_among
from tenora_engine.sampler.rows import Row
from tenora_engine.wire import Sampling

# How many of the best tokens are looked at before the whole vocabulary, until all that is to be kept lies among them.
_WIDTHS: Final = (512, 8192)
_OFF: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where each row is cut: fp64 [rows, 1] each, infinite where off."""

    top_k: Tensor
    top_p: Tensor
    min_logit: Tensor  # of min-p, relative to the best token's; minus infinity where off
    typical_p: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], vocab_size: int, device: torch.device) -> Cuts:
        samplings = [row.sampling for row in rows]
        columns = [
            [sampling.top_k if 0 < sampling.top_k < vocab_size else _OFF for sampling in samplings],
            [sampling.top_p if sampling.top_p < 1 else _OFF for sampling in samplings],
            [sampling.min_p for sampling in samplings],
            [sampling.typical_p if sampling.typical_p < 1 else _OFF for sampling in samplings],
        ]
        top_k, top_p, min_p, typical_p = torch.tensor(columns, dtype=torch.float64, device=device)[:, :, None]
        return cls(top_k, top_p, min_p.log(), typical_p)

    def of_rows(self, rows: Tensor) -> Cuts:
        return Cuts(self.top_k[rows], self.top_p[rows], self.min_logit[rows], self.typical_p[rows])


def truncates(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0 or sampling.typical_p < 1


def draw_truncated(scaled: Tensor, keys: Tensor, cuts: Cuts, race: Race) -> Tensor:
    """One token per row. scaled: fp32 [rows, vocab], the best at 0; keys: of the noise -> int64 [rows]."""
    totals = scaled.exp().sum(-1, dtype=torch.float64, keepdim=True)
    tokens = torch.empty(len(scaled), dtype=torch.int64, device=scaled.device)
    rest = torch.arange(len(scaled), device=scaled.device)
    for width in _WIDTHS:
        if width >= scaled.shape[1] or not len(rest):
            break
        best = scaled[rest].topk(width)
        least = _least(best.values, totals[rest], cuts.of_rows(rest))
        complete = ((least > best.values[:, -1:]) & (cuts.typical_p[rest] == _OFF))[:, 0]
        weights = best.values.exp().masked_fill(best.values < least, 0)
        drawn = race_among(weights, best.indices, keys[rest])
        tokens[rest[complete]] = drawn[complete]
        rest = rest[~complete]
    if len(rest):
        tokens[rest] = _draw_of_all(scaled[rest], totals[rest], keys[rest], cuts.of_rows(rest), race)
    return tokens


def _draw_of_all(scaled: Tensor, totals: Tensor, keys: Tensor, cuts: Cuts, race: Race) -> Tensor:
    least = _least(scaled.sort(dim=-1, descending=True).values, totals, cuts)
    weights = scaled.exp().masked_fill(scaled < least, 0)
    return race(_typical(weights, cuts.typical_p), keys)


def _least(best: Tensor, totals: Tensor, cuts: Cuts) -> Tensor:
    """The least value to keep: fp32 [rows, 1], minus infinity where `best` does not tell.

    best: fp32 [rows, width], the largest values of each row, in descending order; totals: fp64 [rows, 1], sum of the
    exponentials of the whole row.
    """
    width = best.shape[1]
    weights = best.exp().double()
    in_top_k = torch.arange(width, device=best.device) < cuts.top_k
    of_top_k = (weights * in_top_k).sum(-1, keepdim=True)
    share = cuts.top_p * torch.where(cuts.top_k == _OFF, totals, of_top_k)
    # A token is kept while those before it hold less than the share: the best one always is.
    kept = in_top_k & (weights.cumsum(-1) - weights < share)
    last = best.gather(1, kept.sum(-1, keepdim=True).clamp_min(1) - 1)
    told = (cuts.top_k == _OFF) | (cuts.top_k <= width)
    return torch.where(told, last.maximum(cuts.min_logit.to(best.dtype)), -_OFF)


def _typical(weights: Tensor, typical_p: Tensor) -> Tensor:
    """Weights of the tokens whose surprise lies nearest to the entropy and which hold `typical_p` together, others 0.

    Locally typical sampling (Meister et al., TACL 2023). weights: fp32 [rows, vocab]; typical_p: fp64 [rows, 1].
    """
    probabilities = weights.double() / weights.sum(-1, dtype=torch.float64, keepdim=True)
    surprise = -probabilities.log()
    entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
    distance = (surprise - entropy).abs()
    nearest = distance.sort(dim=-1)
    mass = probabilities.gather(1, nearest.indices)
    kept = mass.cumsum(-1) - mass < typical_p
    farthest = nearest.values.gather(1, kept.sum(-1, keepdim=True) - 1)
    return weights.masked_fill(distance > farthest, 0)
