"""The lines of an export: one per local day, base model, adapter, version and price. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from tenora_platform.control.exports.money import PriceBook, UnitPrice
from tenora_platform.control.period import Period, day_start
from tenora_platform.control.usage.totals import Counts


@dataclass(frozen=True)
class Piece:
    """A stretch of one local day in which no price changes."""

    day: date
    starts_at: datetime


@dataclass(frozen=True)
class PieceUsage:
    """What the database added up in one piece. `adapter` is None for the base itself."""

    piece: int  # index into `pieces()`
    base_model: str
    adapter: str | None
    version_digest: str | None
    counts: Counts


@dataclass(frozen=True)
class Line:
    day: date
    base_model: str
    adapter: str | None
    version_digest: str | None
    price: UnitPrice | None
    counts: Counts

    @property
    def amount(self) -> Decimal | None:
        """None when there was no price: that is not the same as free."""
        return self.price.amount(self.counts) if self.price else None


def pieces(period: Period, book: PriceBook) -> list[Piece]:
    """The period cut at every local midnight and at every change of a price; the starts are in order and differ."""
    cut = {day_start(day, period.zone): day for day in period.days}  # of a day without hours, the next one stays
    for instant in book.changes(period.span):
        cut.setdefault(instant, _day_of(cut, instant))
    return [Piece(cut[instant], instant) for instant in sorted(cut)]


def _day_of(cut: dict[datetime, date], instant: datetime) -> date:
    return cut[max(start for start in cut if start <= instant)]


def make_lines(found: Iterable[PieceUsage], cut: list[Piece], book: PriceBook) -> list[Line]:
    """Price what was found, put together what a change of another model's price cut apart, and sort."""
    added: dict[tuple[date, str, str | None, str | None, UnitPrice | None], Counts] = {}
    for usage in found:
        piece = cut[usage.piece]
        price = book.at(usage.base_model, piece.starts_at)
        key = (piece.day, usage.base_model, usage.adapter, usage.version_digest, price)
        added[key] = added.get(key, Counts()) + usage.counts
    return sorted((Line(*key, counts) for key, counts in added.items()), key=_order)


def _order(line: Line) -> tuple[date, str, str, str, str]:
    """By code points, so that no locale has a say."""
    since = line.price.effective_from.isoformat() if line.price else ""
    return (line.day, line.base_model, line.adapter or "", line.version_digest or "", since)
