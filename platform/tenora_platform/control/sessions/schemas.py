from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tenora_platform.control.fields import Body, Id, View
from tenora_platform.db.models import Role


class SignIn(Body):
    username: Annotated[str, Field(min_length=1, max_length=200)]
    password: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra={"format": "password"})]


class UserView(View):
    id: Id
    username: str
    role: Role
    tenant_id: Id | None


class SessionView(View):
    user: UserView
