"""BILL-07: a CSV that a spreadsheet can open and a program can read back."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_platform.control.exports.lines import Line
from tenora_platform.control.exports.money import UnitPrice
from tenora_platform.control.exports.rendering import COLUMNS, Header, render, render_csv, text_cell
from tenora_platform.control.usage.totals import Counts

PRICE = UnitPrice("b", datetime(2025, 1, 1, tzinfo=UTC), "EUR", Decimal("-2.5"), Decimal("0"), Decimal("1.000000000"))
HEADER = Header("e", "t", "acme", "2025-01-01", "2025-01-31", "UTC", "s", "e", 1, 0, 9)


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def line(adapter: str | None, price: UnitPrice | None = None) -> Line:
    return Line(date(2025, 1, 2), "b", adapter, "d" * 64, price, Counts(3, 7_000_000, 0, 1))


@pytest.mark.parametrize(
    "label",
    ["=cmd|'/c calc'!A1", "+1", "-2", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff201"],
)
def test_a_formula_becomes_text(label: str) -> None:
    """BILL-07"""
    (row,) = read(render_csv("acme", "UTC", [line(label)]))
    assert row["adapter"] == "'" + label


@pytest.mark.parametrize("label", ["a\n=1", 'a",=1', 'say "hi"', "a,b", "a\r\nb", "'quoted", "naïve ünïcode 😀", "a=b"])
def test_other_text_is_read_back_as_it_was(label: str) -> None:
    """BILL-07"""
    (row,) = read(render_csv("acme", "UTC", [line(label)]))
    assert row["adapter"] == label


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20))
def test_any_text_survives_but_for_the_documented_quote(label: str) -> None:
    """BILL-07: value equality modulo the prefix, and nothing that starts a formula."""
    ((cell,),) = csv.reader(io.StringIO(text_cell(label) + "\r\n", newline=""), strict=True) if label else [[""]]
    assert cell in (label, "'" + label)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_numbers_stay_numbers() -> None:
    """BILL-07: a negative amount is not quoted into text."""
    (row,) = read(render_csv("acme", "UTC", [line(None, PRICE)]))
    assert row["amount"] == "-17.49999900"
    assert row["prompt_per_million"] == "-2.5"
    assert (row["requests"], row["prompt_tokens"]) == ("3", "7000000")


def test_without_a_price_the_amount_is_empty_and_not_zero() -> None:
    files = render(HEADER, [line("a")], [])
    (row,) = read(files.csv)
    assert [row[name] for name in COLUMNS[-5:]] == [""] * 5
    assert files.totals["amounts"] == {}
    assert files.totals["rows_without_price"] == 1


def test_the_file_is_fixed_to_the_byte() -> None:
    """BILL-07, BILL-08: header, CRLF, no byte order mark."""
    data = render_csv("acme", "Europe/Berlin", [line("a", PRICE), line(None)])
    assert data.decode() == (
        "tenant,day,timezone,base_model,adapter,version_digest,requests,prompt_tokens,cached_tokens,completion_tokens,"
        "currency,prompt_per_million,cached_per_million,completion_per_million,amount\r\n"
        f"acme,2025-01-02,Europe/Berlin,b,a,{'d' * 64},3,7000000,0,1,EUR,-2.5,0,1.000000000,-17.49999900\r\n"
        f"acme,2025-01-02,Europe/Berlin,b,,{'d' * 64},3,7000000,0,1,,,,,\r\n"
    )


def test_the_manifest_vouches_for_the_file() -> None:
    files = render(HEADER, [line("=1", PRICE), line("=1", PRICE)], [PRICE.to_json()])
    manifest = json.loads(files.manifest)
    assert manifest["sha256"] == hashlib.sha256(files.csv).hexdigest() == files.sha256
    assert (manifest["bytes"], manifest["rows"]) == (len(files.csv), 2)
    assert (manifest["revision"], manifest["after_sequence"], manifest["up_to_sequence"]) == (1, 0, 9)
    assert manifest["totals"]["amounts"] == {"EUR": "-34.99999800"}
