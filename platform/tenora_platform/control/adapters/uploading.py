"""From received files to a version that is being validated (design, flow 2).

Nothing is kept of an upload that is refused: its files lie in the request's own folder until they are known to be an
adapter of this base, and only then go to the blob store, under their digest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from tenora_adapters.errors import AdapterRejected, PackageRejected
from tenora_adapters.limits import Limits
from tenora_adapters.manifest import Manifest
from tenora_adapters.names import check_adapter_name
from tenora_adapters.package import UploadedFile, open_files
from tenora_adapters.publish import publish
from tenora_adapters.validate import Validated, validate_package
from tenora_platform.control.adapters.quota import check_quota
from tenora_platform.control.adapters.receiving import ReceivedFile, Upload
from tenora_platform.control.adapters.schemas import ModuleReport, Note, Problem, Report, UploadAccepted
from tenora_platform.control.adapters.service import live
from tenora_platform.control.adapters.storing import hold_note, note_digest
from tenora_platform.control.adapters.views import adapter_views, version_view
from tenora_platform.control.audit.service import record
from tenora_platform.control.base_models.service import accepted_names_of, spec_of
from tenora_platform.control.errors import InvalidRequest, Rejected
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import Transaction, transaction
from tenora_platform.db.models import Adapter, AdapterVersion, BaseModelRow, Tenant, VersionStatus
from tenora_platform.db.session import ScopedSession, scoped

VALIDATE_JOB: Final = "adapters.validate"
_FIELDS: Final = frozenset({"name", "base_model", "confirm_base", "promote"})


@dataclass(frozen=True)
class Wanted:
    """What an upload says of the version that it is to become."""

    name: str
    base_model: str | None = None
    base_confirmed: bool = False
    promote: bool = True


def accept_upload(resources: Resources, actor: str, tenant_id: uuid.UUID, upload: Upload) -> UploadAccepted:
    """Raises InvalidRequest, Rejected, QuotaExceeded."""
    for unknown in sorted(upload.fields.keys() - _FIELDS):
        raise InvalidRequest("There is no such field.", param=unknown[:100])
    wanted = Wanted(
        name=upload.fields.get("name", ""),
        base_model=upload.fields.get("base_model"),
        base_confirmed=_flag(upload.fields, "confirm_base", default=False),
        promote=_flag(upload.fields, "promote", default=True),
    )
    return make_version(resources, actor, tenant_id, wanted, upload.folder, upload.files)


def check_wanted(session: ScopedSession, tenant_id: uuid.UUID, wanted: Wanted, *, new_bytes: int) -> BaseModelRow:
    """The base that it is for. Raises InvalidRequest, Rejected, QuotaExceeded."""
    base = _base_model(session, wanted.base_model)
    name = _adapter_name(session, wanted.name)
    is_new = session.scalar(_named(tenant_id, base, name)) is None
    check_quota(session, tenant_id, is_new=is_new, new_bytes=new_bytes)
    return base


def make_version(
    resources: Resources,
    actor: str,
    tenant_id: uuid.UUID,
    wanted: Wanted,
    folder: Path,
    files: Sequence[ReceivedFile],
    in_transaction: Callable[[Transaction, UploadAccepted], None] = lambda *_: None,
) -> UploadAccepted:
    """Check the files, store them, and make a version that is being validated. `folder` is the caller's, for staging.

    `in_transaction` is called in the transaction that makes the version. Raises InvalidRequest, Rejected,
    QuotaExceeded, and what `in_transaction` raises.
    """
    with resources.sessions(scope=tenant_id) as session:
        base = check_wanted(session, tenant_id, wanted, new_bytes=1)
    limits = Limits(max_upload_bytes=resources.settings.max_upload_bytes)
    try:
        validated = _validate(folder, files, base, limits, base_confirmed=wanted.base_confirmed)
    except AdapterRejected as error:
        raise refusal(error) from error
    digest = validated.manifest.digest
    with resources.sessions(scope=tenant_id) as session:  # asked again, for good, when the version is made
        check_wanted(session, tenant_id, wanted, new_bytes=validated.manifest.weights_bytes)
    while True:  # ends: files that are published are kept for much longer than the next lines take
        with transaction(resources, tenant_id, actor) as work:
            generation = note_digest(work, digest)
        try:
            publish(resources.blobs, validated)
        except AdapterRejected as error:  # another base has the very same files
            raise refusal(error) from error
        with transaction(resources, tenant_id, actor) as work:
            if hold_note(work, digest, generation):
                accepted = _new_version(work, tenant_id, base, wanted, validated)
                in_transaction(work, accepted)
                return accepted


def _base_model(session: Session, name: str | None) -> BaseModelRow:
    query = select(BaseModelRow).limit(2)
    rows = session.scalars(query if name is None else query.where(BaseModelRow.name == name.replace("\0", ""))).all()
    if len(rows) == 1:
        return rows[0]
    if name is None and rows:
        raise InvalidRequest("There are several base models: say which.", param="base_model")
    raise InvalidRequest("There is no such base model.", param="base_model")


def _adapter_name(session: Session, name: str) -> str:
    """ADP-14: an allow-list, and no base model's own name."""
    reserved = {base.lower() for base in session.scalars(select(BaseModelRow.name))}
    try:
        return check_adapter_name(name, reserved)
    except AdapterRejected as error:
        raise refusal(error) from error


def _flag(fields: dict[str, str], name: str, *, default: bool) -> bool:
    match fields.get(name):
        case None:
            return default
        case "true":
            return True
        case "false":
            return False
    raise InvalidRequest("must be true or false.", param=name)


def _validate(
    folder: Path, files: Sequence[ReceivedFile], base: BaseModelRow, limits: Limits, *, base_confirmed: bool
) -> Validated:
    """Raises AdapterRejected."""
    staging = folder / "staged"
    staging.mkdir()
    if not files:
        raise PackageRejected("send the adapter's files", param="files", code="missing_file")
    staged = open_files([UploadedFile(file.path, file.filename) for file in files], staging, limits)
    return validate_package(staged, spec_of(base), limits, accepted_names_of(base), base_confirmed=base_confirmed)


def refusal(error: AdapterRejected) -> Rejected:
    report = rejection_report(error).model_dump()
    return Rejected(error.message, code=error.code, param=error.param, report=report)


def rejection_report(error: AdapterRejected) -> Report:
    return Report(problems=[Problem(code=error.code, message=error.message, param=error.param)])


def first_report(manifest: Manifest) -> Report:
    """What is known before the numbers were looked at."""
    return Report(
        warnings=[Note(code=warning.code, message=warning.message) for warning in manifest.warnings],
        modules=[
            ModuleReport(module=module.module, rank=module.rank, scaling=module.scaling, delta_norm=None)
            for module in manifest.modules
        ],
    )


def _named(tenant_id: uuid.UUID, base: BaseModelRow, name: str) -> Select[Adapter]:
    return live(tenant_id).where(Adapter.base_model_id == base.id, Adapter.name == name)


def _new_version(
    work: Transaction, tenant_id: uuid.UUID, base: BaseModelRow, wanted: Wanted, validated: Validated
) -> UploadAccepted:
    """Raises QuotaExceeded."""
    # Uploads of one tenant take turns here, so that numbers have no gap, a name is made once and the quota holds.
    work.session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))
    named = _named(tenant_id, base, wanted.name).with_for_update(key_share=True)  # not one that is being deleted
    adapter = work.session.scalar(named)
    size_bytes = validated.manifest.weights_bytes
    check_quota(work.session, tenant_id, is_new=adapter is None, new_bytes=size_bytes)
    if adapter is None:
        adapter = Adapter(tenant_id=tenant_id, base_model_id=base.id, name=wanted.name)
        work.session.add(adapter)
        work.session.flush()
    newest = scoped(AdapterVersion, tenant_id).where(AdapterVersion.adapter_id == adapter.id)
    number = work.session.scalar(newest.with_only_columns(func.coalesce(func.max(AdapterVersion.number), 0)))
    version = AdapterVersion(
        tenant_id=tenant_id,
        adapter_id=adapter.id,
        number=(number or 0) + 1,
        digest=validated.manifest.digest,
        size_bytes=size_bytes,
        status=VersionStatus.VALIDATING,
        promote_when_ready=wanted.promote,
        report=first_report(validated.manifest).model_dump(),
    )
    work.session.add(version)
    work.session.flush()
    record(
        work,
        "adapter.upload",
        version.id,
        tenant_id=tenant_id,
        adapter_id=str(adapter.id),
        name=wanted.name,
        number=version.number,
        digest=version.digest,
    )
    work.send_job(VALIDATE_JOB, version.id)
    (view,) = adapter_views(work.session, tenant_id, [adapter])
    return UploadAccepted(adapter=view, version=version_view(adapter, version))
