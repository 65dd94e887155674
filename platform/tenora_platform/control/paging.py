"""Pages of rows, newest first, by keyset: a page costs the same however far in, and rows that come meanwhile do
not shift it."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Depends, Query
from sqlalchemy import Select, tuple_
from sqlalchemy.orm import Session

from tenora_platform.control.errors import InvalidRequest
from tenora_platform.control.fields import Page, View


@dataclass(frozen=True)
class PageRequest:
    limit: int
    cursor: str | None


def page_request(
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> PageRequest:
    return PageRequest(limit=limit, cursor=cursor)


Paging = Annotated[PageRequest, Depends(page_request)]


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended: the instant and the id of its last row."""

    at: datetime
    id: uuid.UUID | int


_Row = TypeVar("_Row")
_Item = TypeVar("_Item", bound=View)


@dataclass(frozen=True)
class RowPage(Generic[_Row]):
    rows: list[_Row]
    next: str | None


def page_of_rows(session: Session, query: Select[_Row], at: Any, key: Any, request: PageRequest) -> RowPage[_Row]:
    """One page of `query` by its columns (`at`, `key`), newest first. Raises InvalidRequest on a bad cursor."""
    if request.cursor is not None:
        position = _decode(request.cursor, key.type.python_type)
        query = query.where(tuple_(at, key) < tuple_(position.at, position.id))
    rows = list(session.scalars(query.order_by(at.desc(), key.desc()).limit(request.limit + 1)))
    more = len(rows) > request.limit
    del rows[request.limit :]
    following = _encode(_Position(getattr(rows[-1], at.key), getattr(rows[-1], key.key))) if more else None
    return RowPage(rows=rows, next=following)


def paginate(
    session: Session, query: Select[_Row], at: Any, key: Any, request: PageRequest, view: Callable[[_Row], _Item]
) -> Page[_Item]:
    """`page_of_rows`, each row shown by `view`."""
    found = page_of_rows(session, query, at, key, request)
    return Page(items=[view(row) for row in found.rows], next=found.next)


def _encode(position: _Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def _decode(cursor: str, key_type: type) -> _Position:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        position = msgspec.json.decode(raw, type=_Position)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        position = None
    if position is None or position.at.tzinfo is None or not isinstance(position.id, key_type):
        raise InvalidRequest("The cursor is not one that a list answered.", param="cursor")
    return position
