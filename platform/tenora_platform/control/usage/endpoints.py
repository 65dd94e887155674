"""HTTP routes of usage."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tenora_platform.control.access import ReadBooks
from tenora_platform.control.routes import ControlRoute
from tenora_platform.control.usage import service
from tenora_platform.control.usage.schemas import Bucket, UsageView

router = APIRouter(prefix="/tenants/{tenant_id}/usage", tags=["usage"], route_class=ControlRoute)
_When = Annotated[str | None, Query(max_length=40, description="A day of the tenant, or an RFC 3339 instant.")]


@router.get("", operation_id="getUsage")
def get_usage(
    inside: ReadBooks,
    bucket: Bucket = Bucket.DAY,
    start: Annotated[_When, Query(alias="from")] = None,
    end: Annotated[_When, Query(alias="to")] = None,
) -> UsageView:
    """Usage from `from` to before `to`, in buckets that begin where the tenant's hours or days begin."""
    return service.get_usage(inside.work, inside.tenant, service.usage_span(inside.tenant, start, end, bucket), bucket)
