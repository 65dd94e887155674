"""One choice on its way through a grammar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import torch
import xgrammar
from torch import Tensor

from tenora_engine.errors import Refused
from tenora_engine.wire import GRAMMAR_REFUSED, FailCode

# Processor time that one call may take on the step path, where everybody waits for it. A hundred times the usual.
_COSTLY_S: Final = 0.1
# Tokens that are looked ahead for forced text, and how many of them may be allowed at a place that forces one.
_LOOKAHEAD: Final = 16
_LOOKAHEAD_S: Final = 0.002  # and the processor time for it
_FEW: Final = 32


class Constraint:
    """Follows the tokens of one choice, and says which may come next. See `request.Constraint`."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, ends: Iterable[int], tokens: Sequence[bytes]) -> None:
        """`ends`: tokens that are allowed when the text is whole, and never before; `tokens`: the bytes of each id."""
        self._ends = frozenset(ends)
        self._tokens = tokens
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=sorted(self._ends))

    def fill(self, mask: Tensor) -> None:
        """Raises Refused where no token is allowed, and when the grammar costs too much to follow."""
        begun = time.thread_time()
        self._matcher.fill_next_token_bitmask(mask[None])
        if time.thread_time() - begun > _COSTLY_S:
            raise Refused(FailCode.INVALID, GRAMMAR_REFUSED + "it takes too long to follow")
        if not mask.any():
            raise Refused(FailCode.INVALID, GRAMMAR_REFUSED + "no token of this model goes on with it")

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    @property
    def is_terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def forced_text(self) -> str:
        """A text that as good as must come next, or the beginning of it: as far as some tokens reach.

        A place forces its text when the allowed tokens are all beginnings of the longest of them; that another text
        might go on from a shorter one is not looked for. The matcher's own search has no bound: one short grammar
        forces a million characters.
        """
        mask = torch.empty(-(-len(self._tokens) // 32), dtype=torch.int32)
        text = b""
        num_accepted = 0
        begun = time.thread_time()
        while num_accepted < _LOOKAHEAD and not self.is_terminated and time.thread_time() - begun < _LOOKAHEAD_S:
            self._matcher.fill_next_token_bitmask(mask[None])
            longest = self._only_way(mask)
            if longest is None or not self.accept(longest):
                break
            num_accepted += 1
            text += self._tokens[longest]
        if num_accepted:
            self.rollback(num_accepted)
        return text.decode(errors="ignore")

    def _only_way(self, mask: Tensor) -> int | None:
        """The longest of the allowed tokens, if all others are beginnings of it and the text cannot end here."""
        words = mask.nonzero()[:, 0].tolist()
        if len(words) > _FEW:
            return None
        allowed = [32 * word + bit for word in words for bit in range(32) if int(mask[word]) >> bit & 1]
        if not allowed or len(allowed) > _FEW or not self._ends.isdisjoint(allowed):
            return None
        longest = max(allowed, key=lambda token_id: len(self._tokens[token_id]))
        text = self._tokens[longest]
        return longest if all(text.startswith(self._tokens[token_id]) for token_id in allowed) else None
