"""The second half of validation, by the worker: are all numbers finite, and is what was stored what was checked."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import func, select

from tenora_adapters.blobs import BlobError, BlobUnavailable
from tenora_adapters.errors import AdapterRejected
from tenora_adapters.numeric import check_numbers
from tenora_adapters.publish import read_manifest
from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.adapters.schemas import Problem, Report
from tenora_platform.control.adapters.serving import point_to
from tenora_platform.control.adapters.states import move
from tenora_platform.control.adapters.storing import collect
from tenora_platform.control.adapters.uploading import VALIDATE_JOB, rejection_report
from tenora_platform.control.audit.service import record
from tenora_platform.control.base_models.service import spec_of
from tenora_platform.control.jobs import Job, Periodic
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import Adapter, AdapterVersion, BaseModelRow, VersionStatus

RESEND_AFTER: Final = timedelta(minutes=1)
GIVE_UP_AFTER: Final = timedelta(minutes=30)
_GAVE_UP: Final = "The check did not come to an end. Upload it again."
_DAMAGED: Final = "What was stored is not what was uploaded. Upload it again."


def validate(work: Transaction, version_id: uuid.UUID) -> None:
    """Make the version `ready`, and what its adapter serves, or `rejected` with a report; all in one transaction."""
    query = select(AdapterVersion).where(
        AdapterVersion.id == version_id, AdapterVersion.status == VersionStatus.VALIDATING
    )
    version = work.session.scalar(query.with_for_update(key_share=True, skip_locked=True))
    if version is None:
        return
    adapter = work.session.get_one(Adapter, version.adapter_id)
    base = work.session.get_one(BaseModelRow, adapter.base_model_id)
    try:
        manifest = read_manifest(work.resources.blobs, version.digest)
        found = check_numbers(work.resources.blobs, manifest, spec_of(base))
    except AdapterRejected as error:
        _reject(work, version, rejection_report(error))
        return
    except BlobUnavailable:
        raise  # worth another try, unlike the errors that follow
    except (BlobError, msgspec.DecodeError):
        _reject(work, version, _problem("damaged", _DAMAGED))
        return
    version.report = Report.model_validate(found).model_dump()
    _get_ready(work, version)


def _get_ready(work: Transaction, version: AdapterVersion) -> None:
    """Serve it if its upload asked for that, unless a canary runs or a later version serves already."""
    adapter = work.session.get_one(Adapter, version.adapter_id, with_for_update=True, populate_existing=True)
    if adapter.deleted_at is not None:
        move(version, VersionStatus.DELETED)
        return
    move(version, VersionStatus.READY)
    active = work.session.get(AdapterVersion, adapter.active_version_id) if adapter.active_version_id else None
    is_next = adapter.canary_version_id is None and (active is None or active.number < version.number)
    if version.promote_when_ready and is_next:
        point_to(adapter, version)
        work.publish(Change(ChangeKind.ADAPTER, version.tenant_id))
    record(
        work, "adapter.ready", version.id, tenant_id=version.tenant_id, active=adapter.active_version_id == version.id
    )


def _problem(code: str, message: str) -> Report:
    return Report(problems=[Problem(code=code, message=message, param=None)])


def _reject(work: Transaction, version: AdapterVersion, report: Report) -> None:
    move(version, VersionStatus.REJECTED)
    version.report = report.model_dump()
    record(work, "adapter.reject", version.id, tenant_id=version.tenant_id)


def sweep(work: Transaction) -> None:
    """Find versions whose job was lost: send it again, and after GIVE_UP_AFTER reject them."""
    validating = AdapterVersion.status == VersionStatus.VALIDATING
    given_up = select(AdapterVersion).where(validating, AdapterVersion.created_at < func.now() - GIVE_UP_AFTER)
    for version in work.session.scalars(given_up.with_for_update(key_share=True, skip_locked=True)):
        _reject(work, version, _problem("check_did_not_end", _GAVE_UP))
    lost = select(AdapterVersion.id).where(validating, AdapterVersion.created_at < func.now() - RESEND_AFTER)
    for version_id in work.session.scalars(lost):
        work.send_job(VALIDATE_JOB, version_id)


JOBS: Final = (Job(VALIDATE_JOB, validate),)
PERIODIC: Final = (
    Periodic("adapters.sweep", sweep, every=timedelta(minutes=1)),
    Periodic("adapters.collect_blobs", collect, every=timedelta(minutes=10)),
)
