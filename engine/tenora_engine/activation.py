"""Where in a prompt an adapter begins to apply.

An activated LoRA (Greenewald et al. 2025, arXiv:2504.12397) leaves alone whatever stands before its invocation: the
last occurrence of its own sequence of tokens in the prompt. What was computed for the base up to there is its as well.
As in PEFT's `generate`, tokens that are generated invoke nothing.
"""

from __future__ import annotations

from collections.abc import Sequence


def first_position(prompt: Sequence[int], invocation: Sequence[int] | None) -> int | None:
    """The first position that an adapter changes: 0 for one without an `invocation`, which is never empty; None where
    the prompt does not hold it whole."""
    if invocation is None:
        return 0
    wanted = list(invocation)
    for start in range(len(prompt) - len(wanted), -1, -1):
        if prompt[start] == wanted[0] and list(prompt[start : start + len(wanted)]) == wanted:
            return start
    return None
