"""JSON from strangers: no duplicate keys, no NaN, no endless nesting."""

from __future__ import annotations

import json
from typing import Any


class JsonRejected(ValueError):
    """The text is not JSON as we accept it. The message says why."""


def read_object(text: bytes) -> dict[str, Any]:
    """The object in `text` (UTF-8), keys in the order of the text. Raises JsonRejected."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except JsonRejected:
        raise
    except UnicodeDecodeError as error:
        raise JsonRejected("it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise JsonRejected(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise JsonRejected("it is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonRejected(f"the key {twice[:100]!r} stands there twice")
    return found


def _no_constant(text: str) -> Any:
    raise JsonRejected(f"{text} is not a number in JSON")
