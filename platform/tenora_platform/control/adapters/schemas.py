from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from tenora_platform.control.fields import Id, View
from tenora_platform.db.models import VersionStatus


class VersionSummary(View):
    id: Id
    number: int
    digest: str = Field(description="SHA-256 over config and weights: what engines know this version by.")
    status: VersionStatus
    size_bytes: int
    created_at: datetime


class VersionView(VersionSummary):
    report: dict[str, Any] = Field(description="What validation found.")


class AdapterView(View):
    id: Id
    name: str
    base_model: str
    model: str = Field(description="What to ask the gateway for.")
    active_version: VersionSummary | None = Field(description="The version that the name serves.")
    latest_version: VersionSummary | None = Field(description="The newest upload, whatever became of it.")
    versions_count: int
    created_at: datetime


class AdapterDetail(AdapterView):
    versions: list[VersionView] = Field(description="Newest first.")


class UploadAccepted(View):
    adapter: AdapterView
    version: VersionView
