"""What tokens cost. Exact decimals, one rounding per line, no float anywhere. Pure.

    amount = ((prompt - cached) x prompt price + cached x cached price + completion x completion price) / 10^6

rounded half to even to PLACES decimals, once for a whole line and never per request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from tenora_platform.control.period import Span
from tenora_platform.control.usage.totals import Counts

PLACES: Final = 8
_QUANTUM: Final = Decimal(1).scaleb(-PLACES)
_EXACT: Final = Context(prec=80, rounding=ROUND_HALF_EVEN)  # counts and prices of any legal size fit without rounding


@dataclass(frozen=True)
class UnitPrice:
    """Prices per million tokens of one base model, from an instant on."""

    base_model: str
    effective_from: datetime
    currency: str
    prompt: Decimal
    cached: Decimal
    completion: Decimal

    def amount(self, counts: Counts) -> Decimal:
        total = Decimal(0)
        for tokens, price in (
            (counts.prompt - counts.cached, self.prompt),
            (counts.cached, self.cached),
            (counts.completion, self.completion),
        ):
            total = _EXACT.add(total, _EXACT.multiply(Decimal(tokens), price))
        return total.scaleb(-6, _EXACT).quantize(_QUANTUM, context=_EXACT)

    def to_json(self) -> dict[str, str]:
        return {
            "base_model": self.base_model,
            "effective_from": self.effective_from.isoformat(),
            "currency": self.currency,
            "prompt_per_million": format(self.prompt, "f"),
            "cached_per_million": format(self.cached, "f"),
            "completion_per_million": format(self.completion, "f"),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UnitPrice:
        return cls(
            base_model=data["base_model"],
            effective_from=datetime.fromisoformat(data["effective_from"]),
            currency=data["currency"],
            prompt=Decimal(data["prompt_per_million"]),
            cached=Decimal(data["cached_per_million"]),
            completion=Decimal(data["completion_per_million"]),
        )


class PriceBook:
    """Prices by effective date: each holds until the next one of the same base model."""

    def __init__(self, prices: Iterable[UnitPrice]) -> None:
        self.prices = sorted(prices, key=lambda price: (price.base_model, price.effective_from))
        self._by_base: dict[str, list[UnitPrice]] = {}
        for price in self.prices:
            self._by_base.setdefault(price.base_model, []).append(price)

    def at(self, base_model: str, instant: datetime) -> UnitPrice | None:
        """The price in force at `instant`; None when there is none yet."""
        prices = self._by_base.get(base_model, [])
        index = bisect_right(prices, instant, key=lambda price: price.effective_from)
        return prices[index - 1] if index else None

    def during(self, span: Span) -> PriceBook:
        """The part of the book that decides prices within `span`."""
        at_start = (self.at(base_model, span.starts_at) for base_model in self._by_base)
        return PriceBook(
            {price for price in at_start if price is not None}
            | {price for price in self.prices if span.holds(price.effective_from)}
        )

    def changes(self, span: Span) -> list[datetime]:
        """The instants within `span` at which a price begins, in order."""
        return sorted({price.effective_from for price in self.prices if span.holds(price.effective_from)})


def total_amounts(amounts: Iterable[tuple[str, Decimal]]) -> dict[str, Decimal]:
    """Sums of rounded line amounts by currency, in order of currency."""
    totals: dict[str, Decimal] = {}
    for currency, amount in amounts:
        totals[currency] = _EXACT.add(totals.get(currency, Decimal(0)), amount)
    return dict(sorted(totals.items()))
