"""Lines of an export: cut by day and price, added up, in order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

from tenora_platform.control.exports.lines import PieceUsage, make_lines, pieces
from tenora_platform.control.exports.money import PriceBook, UnitPrice
from tenora_platform.control.period import Period
from tenora_platform.control.usage.totals import Counts

FIRST = date(2025, 3, 29)
PERIOD = Period(FIRST, date(2025, 3, 31), "Europe/Berlin")
NOON = datetime(2025, 3, 30, 12, tzinfo=UTC)


def price(base: str, since: datetime, prompt: int) -> UnitPrice:
    return UnitPrice(base, since, "EUR", Decimal(prompt), Decimal(0), Decimal(0))


def test_a_day_is_cut_where_a_price_changes() -> None:
    book = PriceBook([price("b", datetime(2025, 1, 1, tzinfo=UTC), 1), price("b", NOON, 2)])
    cut = pieces(PERIOD, book)
    assert [piece.day.day for piece in cut] == [29, 30, 30, 31]
    assert cut[2].starts_at == NOON

    usage = [PieceUsage(index, "b", None, None, Counts(1, 1_000_000)) for index in range(4)]
    lines = make_lines(usage, cut, book)
    assert [(line.day.day, line.amount) for line in lines] == [(29, 1), (30, 1), (30, 2), (31, 2)]


def test_the_change_of_another_models_price_cuts_no_line() -> None:
    book = PriceBook([price("other", NOON, 2)])
    cut = pieces(PERIOD, book)
    usage = [PieceUsage(index, "b", "a", "d", Counts(1, 5, 1, 2)) for index in (1, 2)]
    (line,) = make_lines(usage, cut, book)
    assert line.counts == Counts(2, 10, 2, 4)
    assert line.amount is None


def test_lines_have_one_order() -> None:
    cut = pieces(PERIOD, PriceBook([]))
    keys = [
        (2, "b", None, None),
        (0, "b", "z", "2"),
        (0, "b", "z", "1"),
        (0, "B", None, None),
        (0, "b", None, None),
        (0, "b", "Z", "9"),
    ]
    usage = [PieceUsage(*key, Counts(1)) for key in keys]
    expected = [
        (line.day, line.base_model, line.adapter, line.version_digest) for line in make_lines(usage, cut, PriceBook([]))
    ]
    assert [row[1:] for row in expected] == [
        ("B", None, None),
        ("b", None, None),
        ("b", "Z", "9"),
        ("b", "z", "1"),
        ("b", "z", "2"),
        ("b", None, None),
    ]
    assert make_lines(reversed(usage), cut, PriceBook([])) == make_lines(usage, cut, PriceBook([]))
