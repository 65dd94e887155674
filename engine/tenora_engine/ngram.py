"""Finds where a sequence's last tokens were said before: prompt look-up, the drafter that needs no second model.

As LZ77 compressors do (RFC 1951, section 4): a table from the last few tokens to where they stood last, and a chain
from each place to the one before it. A token costs the same however long the sequence is; nothing is scanned again.
"""

from __future__ import annotations

from typing import Final

# Fewer tokens in common are chance; the longest of a few recent places is as good as the longest of all.
_SHORTEST: Final = 3
_LONGEST: Final = 16
_CHAIN: Final = 8

_Gram = tuple[int, ...]


class NgramIndex:
    """Of one growing list of tokens, which the caller keeps."""

    def __init__(self) -> None:
        self._latest: dict[_Gram, int] = {}  # the last tokens before a place -> the latest such place
        self._earlier: dict[int, int] = {}  # a place -> the one before it with the same last tokens
        self._indexed = 0
        self._source = 0  # where the tokens that followed the match begin; 0: there is no match

    def guess(self, tokens: list[int], count: int) -> tuple[int, ...]:
        """What followed the longest match of the last tokens, `count` tokens of it; none without a match.

        `tokens` is the list of the call before with something appended.
        """
        self._extend(tokens)
        if not self._source:
            return ()
        # A match that reaches its own continuation goes round: "ab ab ab" foretells itself for ever.
        period = len(tokens) - self._source
        return tuple(tokens[self._source + offset % period] for offset in range(count))

    def _extend(self, tokens: list[int]) -> None:
        known, num_new = self._indexed, len(tokens) - self._indexed
        if num_new == 0:
            return
        goes_on = self._source > 0 and tokens[known:] == tokens[self._source : self._source + num_new]
        for place in range(max(known + 1, _SHORTEST), len(tokens) + 1):
            gram = tuple(tokens[place - _SHORTEST : place])
            if gram in self._latest:
                self._earlier[place] = self._latest[gram]
            self._latest[gram] = place
        self._indexed = len(tokens)
        self._source = self._source + num_new if goes_on else self._longest(tokens)

    def _longest(self, tokens: list[int]) -> int:
        """Of the latest places with the same last tokens, the one with most of them."""
        end = len(tokens)
        best, best_length = 0, 0
        place = self._earlier.get(end, 0)
        for _ in range(_CHAIN):
            if not place:
                break
            length = _SHORTEST
            while length < min(_LONGEST, place) and tokens[place - length - 1] == tokens[end - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = place, length
            place = self._earlier.get(place, 0)
        return best
