"""API keys: their form, and what proves one."""

from __future__ import annotations

import hashlib

import pytest

from tenora_platform.keys import key_sha256, make_key, parse_key, proves


def test_a_new_key_parses_to_its_prefix_and_proves_itself() -> None:
    key = make_key()
    assert parse_key(key.text) == key.prefix
    assert len(key.prefix) == 12
    assert key.sha256 == key_sha256(key.text) == hashlib.sha256(key.text.encode()).digest()
    assert proves(key.text, key.sha256)
    assert not proves(key.text + "x", key.sha256)
    assert len(key.text) >= 4 + 12 + 1 + 43
    assert make_key().text != key.text


def test_a_key_does_not_show_itself_when_printed() -> None:
    key = make_key()
    assert key.text[17:] not in repr(key)


@pytest.mark.parametrize(
    "text", ["", "tnr_", "sk-" + "a" * 48, "tnr_short_" + "a" * 43, "tnr_" + "a" * 12 + "_" + "a" * 42, " tnr_"]
)
def test_what_is_no_key(text: str) -> None:
    """AUTH-05"""
    assert parse_key(text) is None
    assert parse_key(make_key().text + "\n") is None
    assert parse_key(make_key().text.upper()) is None
