"""Text from tokens one by one, against the whole decoded at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tenora_adapters.token_bytes import TokenBytes, UnsupportedTokenizer
from tenora_platform.gateway.detokenize import Detokenizer

BYTES = TokenBytes([bytes([byte]) for byte in range(256)])


def text_of(data: bytes) -> list[str]:
    detokenizer = Detokenizer(BYTES)
    return [detokenizer.push(byte) for byte in data]


def test_an_emoji_comes_whole_with_its_last_byte() -> None:
    """API-03"""
    assert text_of("😀".encode()) == ["", "", "", "😀"]


@given(st.text())
def test_any_text_survives_byte_by_byte(text: str) -> None:
    """API-03: nothing is lost, and no U+FFFD appears that was not there."""
    assert "".join(text_of(text.encode())) == text


@given(st.binary())
def test_broken_bytes_read_as_they_do_all_at_once(data: bytes) -> None:
    whole = data.decode(errors="replace")
    streamed = "".join(text_of(data))
    # What is unfinished at the end is held back for ever instead of shown as broken.
    assert whole.startswith(streamed)
    assert set(whole[len(streamed) :]) <= {"\ufffd"}


def test_special_tokens_and_unknown_ids_have_no_text() -> None:
    tokenizer = {
        "decoder": {"type": "ByteLevel"},
        "model": {"vocab": {"a": 0, "<end>": 1}},
        "added_tokens": [{"id": 1, "content": "<end>", "special": True}, {"id": 2, "content": "é", "special": False}],
    }
    table = TokenBytes.from_tokenizer(tokenizer)
    assert [table[token_id] for token_id in (0, 1, 2, 3, -1)] == [b"a", b"", "é".encode(), b"", b""]


def test_byte_fallback_vocabularies_are_read() -> None:
    tokenizer = {
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]},
        "model": {"vocab": {"\u2581Hi": 0, "<0xF0>": 1}},
    }
    table = TokenBytes.from_tokenizer(tokenizer)
    assert (table[0], table[1]) == (b" Hi", b"\xf0")


def test_a_tokenizer_without_fixed_bytes_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        TokenBytes.from_tokenizer({"decoder": {"type": "WordPiece"}, "model": {"vocab": {}}})


def test_the_real_tokenizer_reads_back_what_it_wrote(model_folder: Path) -> None:
    definition = (model_folder / "tokenizer.json").read_text()
    encoder = tokenizers.Tokenizer.from_str(definition)
    detokenizer = Detokenizer(TokenBytes.from_tokenizer(json.loads(definition)))
    text = "Größe 1234 — 語 😀 def f(x):\n\treturn x  # 100%"
    assert "".join(detokenizer.push(token_id) for token_id in encoder.encode(text).ids) == text
