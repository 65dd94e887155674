"""What travels over HTTP about the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenora_platform.control.fields import Id, View


class AuditView(View):
    id: int
    at: datetime
    actor: str
    tenant_id: Id | None
    action: str
    target: str
    detail: dict[str, Any]
