"""What travels over HTTP about adapters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from tenora_platform.control.fields import Body, Id, View
from tenora_platform.db.models import VersionStatus

VersionNumber = Annotated[int, Field(ge=1, le=2**31)]


class Problem(View):
    code: str
    message: str
    param: str | None = Field(description="The field, tensor or file that it is about.")


class Note(View):
    code: str
    message: str


class ModuleReport(View):
    model_config = ConfigDict(extra="ignore")

    module: str
    rank: int
    scaling: float
    delta_norm: float | None = Field(description="Of what is added to the module's weight; null before the check.")


class Report(View):
    """What validation found, for a person to act on. Reports are kept: what a later release adds is not shown."""

    model_config = ConfigDict(extra="ignore")

    problems: list[Problem] = Field(default_factory=list)
    warnings: list[Note] = Field(default_factory=list)
    modules: list[ModuleReport] = Field(default_factory=list)


class VersionSummary(View):
    id: Id
    number: int
    digest: str = Field(description="SHA-256 over config and weights: what engines know this version by.")
    status: VersionStatus
    share_percent: int = Field(description="Of the requests to the adapter's name, how many in 100 it answers.")
    size_bytes: int
    created_at: datetime


class VersionView(VersionSummary):
    report: Report


class AdapterView(View):
    id: Id
    name: str
    base_model: str
    model: str = Field(description="What to ask the gateway for.")
    active_version: VersionSummary | None = Field(description="The version that the name serves.")
    canary_version: VersionSummary | None = Field(description="The version that a share of the requests goes to.")
    previous_version: VersionSummary | None = Field(description="What a roll back serves, when there is no canary.")
    latest_version: VersionSummary | None = Field(description="The newest upload, whatever became of it.")
    versions_count: int
    created_at: datetime


class AdapterDetail(AdapterView):
    versions: list[VersionView] = Field(description="Newest first.")


class Promotion(Body):
    version: VersionNumber


class CanaryShare(Body):
    version: VersionNumber
    percent: Annotated[int, Field(ge=1, le=99, description="Of the requests to the adapter's name.")]


class AdapterQuotaChange(Body):
    """The whole quota: null is unlimited, 0 takes nothing new. The same bounds as the CHECKs of the table."""

    max_adapters: Annotated[int, Field(ge=0, le=10**6)] | None
    max_bytes: Annotated[int, Field(ge=0, le=10**15)] | None


class AdapterQuotaView(View):
    max_adapters: int | None
    max_bytes: int | None
    used_adapters: int = Field(description="That are not deleted.")
    used_bytes: int = Field(description="Of their versions that are validating, ready or retired.")


class UploadAccepted(View):
    adapter: AdapterView
    version: VersionView
