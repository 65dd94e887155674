"""What travels over HTTP about base models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, View


class NewBaseModel(Body):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,199}$")]
    folder: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="A Hugging Face folder of safetensors, at the same path on every node."
    )


class BaseModelView(View):
    id: Id
    name: str
    fingerprint: str
    context_length: int = Field(description="Tokens, prompt and completion together.")
    created_at: datetime
