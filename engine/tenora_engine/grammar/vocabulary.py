"""The base's tokens as the compiler and the matcher of grammars know them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import xgrammar

from tenora_adapters.token_bytes import TokenBytes, UnsupportedTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """`tokens`: the bytes of each id, none for those that stand for no text; `ends`: what may follow a whole text."""

    tokens: tuple[bytes, ...]
    ends: tuple[int, ...]

    @cached_property
    def info(self) -> xgrammar.TokenizerInfo:
        return xgrammar.TokenizerInfo(
            list(self.tokens), xgrammar.VocabType.RAW, vocab_size=len(self.tokens), stop_token_ids=list(self.ends)
        )


def read_vocabulary(model: Path, vocab_size: int, ends: tuple[int, ...]) -> Vocabulary:
    """From the folder's `tokenizer.json`; without tokens when there is none whose tokens have fixed bytes."""
    try:
        known = TokenBytes.from_tokenizer(json.loads((model / "tokenizer.json").read_bytes()))
    except (OSError, ValueError, KeyError, UnsupportedTokenizer):
        return Vocabulary((), ends)
    return Vocabulary(tuple(known[token_id] for token_id in range(vocab_size)), ends)
