"""The pydantic types of the control API's edge: strict, bounded, nothing unknown let through."""

from __future__ import annotations

import functools
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar
from zoneinfo import available_timezones

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer


class Body(BaseModel):
    """What a caller sends. JSON has few types, so those that travel as text are lax here and checked below."""

    model_config = ConfigDict(extra="forbid", strict=True)


class View(BaseModel):
    """What a caller gets."""

    model_config = ConfigDict(extra="forbid")


_Item = TypeVar("_Item")


class Page(View, Generic[_Item]):
    items: list[_Item]
    next: str | None = Field(description="Cursor of the next page; null on the last one.")


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _day(value: Any) -> Any:
    if not (isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value)):
        raise ValueError("must be a day, such as 2026-11-29")
    return value


def _printable(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError("must not have control characters, nor blanks at its ends")
    return value


@functools.cache
def _zones() -> frozenset[str]:
    """All of IANA's. Not what a system keeps beside them: "localtime" is whatever that machine is set to."""
    return frozenset(available_timezones() - {"localtime"})


def _zone(value: str) -> str:
    if value not in _zones():
        raise ValueError("must be an IANA time zone, such as Europe/Berlin")
    return value


def _plain(value: Decimal) -> str:
    return format(value, "f")


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError as error:  # the first or last hours of all years
        raise ValueError("is out of range") from error


Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
ZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_zone)]
Instant = Annotated[
    AwareDatetime, BeforeValidator(_text), AfterValidator(_utc), Field(strict=False, description="RFC 3339 with zone.")
]
Day = Annotated[date, BeforeValidator(_day), Field(strict=False)]
Id = uuid.UUID
# Money is text on the wire: a JSON number would pass through a float.
Money = Annotated[
    Decimal,
    BeforeValidator(_text),
    Field(strict=False, ge=0, max_digits=18, decimal_places=9, allow_inf_nan=False),
    PlainSerializer(_plain, return_type=str),
]
MoneyText = Annotated[Decimal, PlainSerializer(_plain, return_type=str)]
