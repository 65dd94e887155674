"""What travels over HTTP about sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, Label, View
from tenora_platform.db.models import Role


class SignIn(Body):
    username: Label
    password: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra={"format": "password"})]


class UserView(View):
    id: Id
    username: str
    role: Role
    tenant_id: Id | None


class SessionView(View):
    user: UserView
