"""What travels over HTTP about the price book."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, Instant, Label, Money, MoneyText, View


class NewPrice(Body):
    """Prices per million tokens, as decimal text. They hold until a later row of the same base model."""

    base_model: Label
    effective_from: Instant
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217.")]
    prompt_per_million: Money
    cached_per_million: Money = Field(description="For the part of the prompt that was in the prefix cache.")
    completion_per_million: Money


class PriceView(View):
    id: Id
    base_model: str
    effective_from: datetime
    currency: str
    prompt_per_million: MoneyText
    cached_per_million: MoneyText
    completion_per_million: MoneyText
    created_at: datetime
