"""Recorded traffic: a file of JSON lines, one per request, in order of `at`.

    {"at": 0.25, "prompt_tokens": 310, "output_tokens": 42, "tenant": "acme", "model": "base:bot"}

`at` is in seconds from the start; `tenant` and `model` may be left out and are then drawn.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

_Tokens = Annotated[int, msgspec.Meta(ge=1)]


class TraceLine(msgspec.Struct, frozen=True):
    prompt_tokens: _Tokens
    output_tokens: _Tokens
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tenant: str | None = None
    model: str | None = None


def read_trace(file: Path) -> list[TraceLine]:
    """Raises OSError, and ValueError naming the line at fault."""
    lines = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        try:
            lines.append(msgspec.json.decode(text, type=TraceLine))
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}:{number}: {error}") from error
    if not lines:
        raise ValueError(f"{file} holds no request")
    if any(later.at < earlier.at for earlier, later in pairwise(lines)):
        raise ValueError(f"{file} is not in order of 'at'")
    return lines
