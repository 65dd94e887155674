"""What travels over HTTP about tenants."""

from __future__ import annotations

from datetime import datetime

from tenora_platform.control.fields import Body, Id, Label, Slug, View, ZoneName


class NewTenant(Body):
    name: Slug
    display_name: Label | None = None
    timezone: ZoneName = "UTC"


class TenantChange(Body):
    """What is left out stays as it is."""

    display_name: Label | None = None
    timezone: ZoneName | None = None
    disabled: bool | None = None


class TenantView(View):
    id: Id
    name: str
    display_name: str
    timezone: str
    created_at: datetime
    disabled_at: datetime | None
