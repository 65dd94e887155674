"""The price book. Rows are only ever added: an export keeps what it saw, and a later row changes no closed one."""

from __future__ import annotations

from sqlalchemy import exists, select
from sqlalchemy.exc import IntegrityError

from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import Conflict, InvalidRequest
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.prices.schemas import NewPrice, PriceView
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import BaseModelRow, Price


def list_prices(work: Transaction, page: PageRequest) -> Page[PriceView]:
    return paginate(work.session, select(Price), Price.created_at, Price.id, page, _view)


def add_price(work: Transaction, new: NewPrice) -> PriceView:
    """Raises InvalidRequest on an unknown base model, Conflict on a second price from the same instant."""
    if not work.session.scalar(select(exists().where(BaseModelRow.name == new.base_model))):
        raise InvalidRequest("There is no base model of this name.", param="base_model")
    row = Price(**new.model_dump(mode="python"))
    work.session.add(row)
    try:
        work.session.flush()
    except IntegrityError as error:
        raise Conflict("This base model has a price from this instant on already.", param="effective_from") from error
    record(work, "price.add", row.id, tenant_id=None, **new.model_dump(mode="json"))
    return _view(row)


def _view(row: Price) -> PriceView:
    return PriceView(
        id=row.id,
        base_model=row.base_model,
        effective_from=row.effective_from,
        currency=row.currency,
        prompt_per_million=row.prompt_per_million,
        cached_per_million=row.cached_per_million,
        completion_per_million=row.completion_per_million,
        created_at=row.created_at,
    )
