"""What travels over HTTP about usage."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from tenora_platform.control.fields import View


class Bucket(StrEnum):
    HOUR = "hour"
    DAY = "day"


class UsageItem(View):
    bucket_start: datetime = Field(description="In the tenant's time zone.")
    base_model: str
    adapter: str | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageView(View):
    items: list[UsageItem]
