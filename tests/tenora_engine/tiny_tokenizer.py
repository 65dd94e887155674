"""A byte-level tokenizer for the tiny base's 128 tokens: printable ASCII and some words of JSON; 2 is its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

END: Final = 2
_WORDS: Final = ('{"', '":', '",', "true", "false", "null", "12", "aa", "aaa", "aaaa", "yes", "no", "{}", "[]", '"}')
TOKENS: Final[tuple[bytes, ...]] = tuple(
    text.encode() for text in ["", "", "", *(chr(code) for code in range(0x20, 0x7F)), "\n", "\t", *_WORDS, *[""] * 13]
)
assert len(TOKENS) == 128


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKENS[token_id] for token_id in token_ids).decode()


def write_tokenizer(folder: Path) -> None:
    """`tokenizer.json` beside the model."""
    spelling = str.maketrans({" ": "\u0120", "\n": "\u010a", "\t": "\u0109"})
    vocabulary = {text.decode().translate(spelling): index for index, text in enumerate(TOKENS) if text}
    special = [
        {"id": index, "content": f"<s{index}>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, text in enumerate(TOKENS)
        if not text
    ]
    definition = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition))
