"""What travels over HTTP about base models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, Label, View

AcceptedNames = Annotated[
    list[Label],
    Field(max_length=64, description="What an adapter's config may name as its base, besides the name served here."),
]


class NewBaseModel(Body):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,199}$")]
    folder: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="A Hugging Face folder of safetensors, at the same path on every node."
    )
    accepted_names: AcceptedNames = Field(default_factory=list)


class AcceptedNamesChange(Body):
    """The whole list: names that are left out are no longer accepted. Adapters that are there stay."""

    accepted_names: AcceptedNames


class BaseModelView(View):
    id: Id
    name: str
    fingerprint: str
    context_length: int = Field(description="Tokens, prompt and completion together.")
    accepted_names: AcceptedNames
    created_at: datetime
