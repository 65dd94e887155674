"""What travels over HTTP about API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, Instant, Label, View


class NewKey(Body):
    name: Label
    expires_at: Instant | None = None
    allowed_models: Annotated[list[Label], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Model names as in requests; null allows every model of the tenant."
    )


class KeyView(View):
    id: Id
    name: str
    prefix: str = Field(description="The public part, by which a key can be recognised.")
    allowed_models: list[str] | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime


class KeyWithSecret(KeyView):
    key: str = Field(description="The key itself. It is shown this once and stored nowhere.")
