"""What travels over HTTP about billing exports."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import Field, model_validator

from tenora_platform.control.fields import Body, Day, Id, View
from tenora_platform.db.models import ExportStatus


class NewExport(Body):
    """Either a month, or first and last day (both included), in the tenant's time zone."""

    period: Annotated[str, Field(max_length=7, description="A month, such as 2026-11.")] | None = None
    first_day: Day | None = None
    last_day: Day | None = None

    @model_validator(mode="after")
    def _one_form(self) -> NewExport:
        days = (self.first_day is not None, self.last_day is not None)
        if any(days) != all(days) or any(days) == (self.period is not None):
            raise ValueError("give either period, or first_day and last_day")
        return self


class ExportTotals(View):
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amounts: dict[str, str] = Field(description="Decimal text by currency; what has no price is not in it.")
    rows_without_price: int


class ExportView(View):
    id: Id
    status: ExportStatus
    first_day: date
    last_day: date
    timezone: str
    starts_at: datetime
    ends_at: datetime
    revision: int = Field(description="Revisions after the first hold only what arrived late: add them up.")
    sha256: str | None
    rows: int | None
    totals: ExportTotals | None
    error: str | None
    created_at: datetime
