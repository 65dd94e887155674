"""From logits to tokens, for all rows of a step at once.

A row's result depends on its own logits, sampling parameters, seed, choice and position, never on its neighbours. The
order of work: penalties, bias, minimum length and grammar (`shaping`), temperature, top-k, top-p, min-p and typical-p
(`truncation`), then one draw among what is left (`race`), with noise of which nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_engine.kernels import draw
from tenora_engine.sampler.logprobs import logprobs_of
from tenora_engine.sampler.race import Race, noise_keys
from tenora_engine.sampler.rows import Row, Sampled
from tenora_engine.sampler.shaping import shape
from tenora_engine.sampler.truncation import Cuts, draw_truncated, truncates
from tenora_engine.wire import Sampling, TokenLogprob

__all__ = ["Row", "Sampled", "logprobs_of", "sample"]


def sample(logits: Tensor, rows: Sequence[Row], masks: Tensor | None = None, race: Race = draw.race) -> list[Sampled]:
    """Draw one token for each row.

    logits: fp32 [rows, vocab], finite. masks: which tokens the rows' grammars allow, int32 [rows, ceil(vocab / 32)] on
    any device, see `shaping.shape`; None where no row has a grammar. race: the device's, by default the reference.
    """
    shaped = shape(logits, rows, masks)
    tokens = shaped.argmax(dim=-1)
    drawn = [index for index, row in enumerate(rows) if not _is_greedy(row.sampling)]
    whole = [index for index in drawn if not truncates(rows[index].sampling)]
    cut = [index for index in drawn if truncates(rows[index].sampling)]
    if whole:
        asking = [rows[index] for index in whole]
        tokens[whole] = race(_scale(shaped[whole], asking).exp(), noise_keys(asking, logits.device))
    if cut:
        asking = [rows[index] for index in cut]
        cuts = Cuts.of(asking, logits.shape[1], logits.device)
        tokens[cut] = draw_truncated(_scale(shaped[cut], asking), noise_keys(asking, logits.device), cuts, race)
    return _report(logits, tokens.tolist(), rows)


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 or sampling.top_k == 1 or sampling.min_p == 1


def _scale(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits over temperature, the best at 0: no temperature however small gives infinity or NaN."""
    temperatures = torch.tensor([row.sampling.temperature for row in rows], device=logits.device)
    return (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None].clamp_min(torch.finfo(torch.float32).tiny)


def _report(logits: Tensor, token_ids: Sequence[int], rows: Sequence[Row]) -> list[Sampled]:
    num_top = {index: row.sampling.logprobs for index, row in enumerate(rows) if row.sampling.logprobs is not None}
    logprobs: dict[int, TokenLogprob] = {}
    if num_top:
        wanted = list(num_top)
        entries = logprobs_of(logits[wanted], [token_ids[index] for index in wanted], list(num_top.values()))
        logprobs = dict(zip(wanted, entries, strict=True))
    return [Sampled(token_id, logprobs.get(index)) for index, token_id in enumerate(token_ids)]
