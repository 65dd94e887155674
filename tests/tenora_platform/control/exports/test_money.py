"""BILL-06: exact decimals, one rounding per line."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.control.exports import lines, money
from tenora_platform.control.exports.money import PriceBook, UnitPrice, total_amounts
from tenora_platform.control.period import Span
from tenora_platform.control.usage.totals import Counts

START = datetime(2025, 1, 1, tzinfo=UTC)


def price(prompt: str = "0", cached: str = "0", completion: str = "0", *, base: str = "b", after: int = 0) -> UnitPrice:
    since = START + timedelta(days=after)
    return UnitPrice(base, since, "USD", Decimal(prompt), Decimal(cached), Decimal(completion))


def plain(amount: Decimal) -> str:
    return format(amount, "f")


def test_a_thousand_events_of_seven_tokens() -> None:
    """BILL-06: per event and to six places it would be 0.001000, with floats 0.0010500000000000275."""
    total = sum((Counts(requests=1, completion=7) for _ in range(1000)), Counts())
    assert plain(price(completion="0.15").amount(total)) == "0.00105000"


def test_nine_decimals_are_kept_until_the_line_is_rounded() -> None:
    assert plain(price(prompt="0.000000001").amount(Counts(prompt=10**15))) == "1.00000000"
    assert plain(price(prompt="0.123456789").amount(Counts(prompt=1))) == "0.00000012"


def test_half_goes_to_the_even_neighbour() -> None:
    assert plain(price(prompt="0.005").amount(Counts(prompt=1))) == "0.00000000"  # 0.000000005
    assert plain(price(prompt="0.015").amount(Counts(prompt=1))) == "0.00000002"  # 0.000000015


def test_cached_tokens_are_paid_once_at_their_own_price() -> None:
    assert price("10", "1", "0").amount(Counts(prompt=1_000_000, cached=400_000)) == Decimal("6.4")


@given(
    prompt=st.integers(0, 10**18),
    cached=st.integers(0, 10**18),
    completion=st.integers(0, 10**18),
    micro=st.tuples(*[st.integers(0, 10**18 - 1)] * 3),
)
def test_amounts_are_exact_to_half_a_unit(
    prompt: int, cached: int, completion: int, micro: tuple[int, int, int]
) -> None:
    """BILL-06: against whole numbers, for every count and price that the tables can hold."""
    cached = min(cached, prompt)
    given_price = price(*(format(Decimal(value).scaleb(-9), "f") for value in micro))
    amount = given_price.amount(Counts(1, prompt, cached, completion))
    exact = (prompt - cached) * micro[0] + cached * micro[1] + completion * micro[2]  # in 10^-15
    unit = 10**7  # 10^-8 in 10^-15
    sign, digits, exponent = amount.as_tuple()
    assert (sign, exponent) == (0, -8)
    assert abs(int("".join(map(str, digits))) * unit - exact) * 2 <= unit


@given(st.lists(st.tuples(st.sampled_from(["EUR", "USD"]), st.decimals(-(10**12), 10**12, places=8)), max_size=50))
def test_lines_add_up_to_the_total(amounts: list[tuple[str, Decimal]]) -> None:
    """BILL-06: sum(lines) == total, negative corrections included."""
    for currency, total in total_amounts(amounts).items():
        units = sum(int(amount.scaleb(8)) for other, amount in amounts if other == currency)
        assert int(total.scaleb(8)) == units


def test_no_float_in_the_money_path() -> None:
    """BILL-06: the type checker sees to the rest."""
    for module in (money, lines):
        assert "float(" not in inspect.getsource(module)
    with pytest.raises(TypeError):
        UnitPrice("b", START, "USD", 0.15, Decimal(0), Decimal(0)).amount(Counts(prompt=1))  # type: ignore[arg-type]


def test_the_price_in_force() -> None:
    book = PriceBook([price("2", after=10), price("1"), price("9", base="other", after=5)])
    at = [
        book.at("b", START + timedelta(days=days, microseconds=micros))
        for days, micros in ((0, -1), (0, 0), (10, -1), (10, 0))
    ]
    assert [found and found.prompt for found in at] == [None, Decimal(1), Decimal(1), Decimal(2)]
    assert book.at("unknown", START) is None


def test_the_part_of_the_book_that_counts() -> None:
    prices = [
        price("1"),
        price("2", after=10),
        price("3", after=20),
        price("4", after=30),
        price("9", base="o", after=15),
    ]
    span = Span(START + timedelta(days=12), START + timedelta(days=30))
    book = PriceBook(prices).during(span)
    assert [found.prompt for found in book.prices] == [Decimal(2), Decimal(3), Decimal(9)]
    assert book.changes(span) == [START + timedelta(days=15), START + timedelta(days=20)]


def test_prices_survive_json() -> None:
    before = price("0.123456789", "0.000000001", "12")
    assert UnitPrice.from_json(before.to_json()) == before
