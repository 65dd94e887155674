"""The bytes that each token of a base model stands for, from its `tokenizer.json`."""

from __future__ import annotations

import re
from typing import Any, Final

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")
_METASPACE: Final = "\u2581"


class UnsupportedTokenizer(Exception):
    """The tokenizer's decoder is of a kind whose tokens have no fixed bytes."""


class TokenBytes:
    """The bytes that each token id stands for; none for special tokens and for ids outside the vocabulary."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table

    def __getitem__(self, token_id: int) -> bytes:
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def __len__(self) -> int:
        return len(self._table)

    @classmethod
    def from_tokenizer(cls, tokenizer: dict[str, Any]) -> TokenBytes:
        """Read a parsed `tokenizer.json`. Raises UnsupportedTokenizer."""
        decoders = _decoder_types(tokenizer.get("decoder"))
        if "ByteLevel" in decoders:
            to_bytes = _byte_level
        elif "ByteFallback" in decoders or "Metaspace" in decoders:
            to_bytes = _byte_fallback
        else:
            raise UnsupportedTokenizer(f"decoders {sorted(decoders)}; byte-level and byte-fallback are supported")

        vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
        added: list[dict[str, Any]] = tokenizer.get("added_tokens") or []
        size = 1 + max([*vocabulary.values(), *(int(token["id"]) for token in added)])
        table = [b""] * size
        for text, token_id in vocabulary.items():
            table[token_id] = to_bytes(text)
        for token in added:
            table[int(token["id"])] = b"" if token.get("special") else str(token["content"]).encode()
        return cls(table)


def _decoder_types(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return {name for child in decoder["decoders"] for name in _decoder_types(child)}
    return {str(decoder["type"])}


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in for each byte that byte-level BPE writes its vocabulary with (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return alphabet


_ALPHABET: Final = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError:
        return text.encode()  # an added token that stands in the vocabulary as plain text


def _byte_fallback(text: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(match.group(1), 16)])
    return text.replace(_METASPACE, " ").encode()
