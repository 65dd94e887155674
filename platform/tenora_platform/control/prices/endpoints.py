"""HTTP routes of the price book."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import Govern
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.prices import service
from tenora_platform.control.prices.schemas import NewPrice, PriceView
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/prices", tags=["prices"], route_class=ControlRoute)


@router.get("", operation_id="listPrices")
def list_prices(work: Govern, page: Paging) -> Page[PriceView]:
    return service.list_prices(work, page)


@router.post("", operation_id="addPrice", status_code=201)
def add_price(work: Govern, body: NewPrice) -> PriceView:
    return service.add_price(work, body)
