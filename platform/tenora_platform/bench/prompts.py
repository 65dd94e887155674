"""Prompts of a wanted length: random token ids, or random words that the base's tokenizer counts.

A share of each prompt can be common to a tenant, or to all: the system prompt that real traffic repeats. The rest is
different in every request, so that nothing else is found in a prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_TRIES: Final = 5  # to meet a token count by adding and dropping words
_COMMON_WORDS: Final = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face level office door health person art war history party result change morning reason research girl "
    "guy moment air teacher force education"
)


class PromptError(Exception):
    """No prompt of the wanted length can be made."""


class PromptForm(StrEnum):
    AUTO = "auto"
    IDS = "ids"
    TEXT = "text"


class SharedBy(StrEnum):
    TENANT = "tenant"
    ALL = "all"


@dataclass(frozen=True)
class SharedPrefix:
    """`share` (0 to 1) of every prompt's tokens is the same for each tenant, or for all."""

    share: float = 0.0
    by: SharedBy = SharedBy.TENANT


class Prompts(Protocol):
    def make(self, tenant: str, tokens: int, random: Random) -> str | list[int]:
        """Raises PromptError."""


class IdPrompts:
    """Token ids as they stand: exact everywhere where a server takes them (`/v1/completions`)."""

    def __init__(self, ids: Sequence[int], prefix: SharedPrefix, seed: int) -> None:
        self._ids = ids
        self._prefix = prefix
        self._seed = seed

    def make(self, tenant: str, tokens: int, random: Random) -> list[int]:
        return list(_units(self._ids, tokens, self._prefix, f"{self._seed} {_scope(self._prefix, tenant)}", random))


class WordPrompts:
    """Common words, each a token of its own in most vocabularies; `count` makes the number exact.

    `count` gives the tokens that a server makes of a text, special ones included; without it a word counts as one.
    What a chat template adds comes on top: the server's usage says how much.
    """

    def __init__(self, count: Callable[[str], int] | None, prefix: SharedPrefix, seed: int) -> None:
        self._words = _COMMON_WORDS.split()
        self._count = count
        self._prefix = prefix
        self._seed = seed

    def make(self, tenant: str, tokens: int, random: Random) -> str:
        seed = f"{self._seed} {_scope(self._prefix, tenant)}"
        words = list(_units(self._words, tokens, self._prefix, seed, random))
        if self._count is None:
            return " ".join(words)
        for _ in range(_TRIES):
            missing = tokens - self._count(" ".join(words))
            if missing == 0:
                return " ".join(words)
            words = words[:missing] if missing < 0 else words + random.choices(self._words, k=missing)
        raise PromptError(f"no text of exactly {tokens} tokens was found with this tokenizer")


def token_counter(folder: Path) -> Callable[[str], int]:
    """Counts with the tokenizer of a Hugging Face folder, or with a tokenizer.json. Raises PromptError."""
    encoder = _tokenizer(folder)
    return lambda text: len(encoder.encode(text).ids)


def ordinary_ids(folder: Path) -> list[int]:
    """The token ids that are text: all but special and added ones. Raises PromptError."""
    encoder = _tokenizer(folder)
    added = set(encoder.get_added_tokens_decoder())
    return [token for token in range(encoder.get_vocab_size()) if token not in added]


def _tokenizer(folder: Path) -> Any:
    import tokenizers

    file = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        return tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises nothing narrower
        raise PromptError(f"cannot use the tokenizer of {folder}: {error}") from error


def _scope(prefix: SharedPrefix, tenant: str) -> str:
    return tenant if prefix.by is SharedBy.TENANT else ""


def _units(units: Sequence[T], tokens: int, prefix: SharedPrefix, seed: str, random: Random) -> Iterator[T]:
    common = round(prefix.share * tokens)
    yield from Random(seed).choices(units, k=common)
    yield from random.choices(units, k=tokens - common)
