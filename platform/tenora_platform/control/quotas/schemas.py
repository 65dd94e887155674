"""What travels over HTTP about quotas."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, View

# The same bounds as the CHECKs of the table.
RequestsPerMinute = Annotated[int, Field(ge=0, le=10**9)]
TokensPerMinute = Annotated[int, Field(ge=0, le=10**12)]


class QuotaChange(Body):
    """The whole quota: null is unlimited, 0 blocks everything."""

    requests_per_minute: RequestsPerMinute | None
    tokens_per_minute: TokensPerMinute | None


class QuotaView(View):
    requests_per_minute: int | None
    tokens_per_minute: int | None
    updated_at: datetime | None = Field(description="Null while no quota was ever set.")
