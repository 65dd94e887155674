"""The base models that adapters are made for, known by fingerprint."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from tenora_adapters.base import BaseModel, BaseModelError, read_base_model
from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.audit.service import record
from tenora_platform.control.base_models.schemas import BaseModelView, NewBaseModel
from tenora_platform.control.errors import Conflict, InvalidRequest, NotFound
from tenora_platform.control.fields import Page
from tenora_platform.control.paging import PageRequest, paginate
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import BaseModelRow


def list_base_models(work: Transaction, page: PageRequest) -> Page[BaseModelView]:
    return paginate(work.session, select(BaseModelRow), BaseModelRow.created_at, BaseModelRow.id, page, _view)


def register_base_model(work: Transaction, new: NewBaseModel) -> BaseModelView:
    """Raises InvalidRequest when the folder holds none that can be served, Conflict when it is registered."""
    folder = Path(new.folder)
    if not folder.is_absolute():
        raise InvalidRequest("The folder must be an absolute path.", param="folder")
    try:
        row = new_row(new.name, folder, read_base_model(folder), new.accepted_names)
    except BaseModelError as error:
        raise InvalidRequest(str(error), code="bad_base_model", param="folder") from error
    work.session.add(row)
    try:
        work.session.flush()
    except IntegrityError as error:
        raise Conflict("A base model of this name, or this very model, is registered already.") from error
    accepted = {"accepted_names": row.accepted_names}
    record(work, "base_model.register", row.id, tenant_id=None, name=row.name, fingerprint=row.fingerprint, **accepted)
    work.publish(Change(ChangeKind.BASE_MODEL, None))
    return _view(row)


def set_accepted_names(work: Transaction, base_model_id: uuid.UUID, names: Iterable[str]) -> BaseModelView:
    """Raises NotFound."""
    row = work.session.get(BaseModelRow, base_model_id, with_for_update={"key_share": True})
    if row is None:
        raise NotFound("base model")
    row.accepted_names = sorted(set(names))
    record(work, "base_model.accept", row.id, tenant_id=None, name=row.name, accepted_names=row.accepted_names)
    return _view(row)


def new_row(name: str, folder: Path, model: BaseModel, accepted_names: Iterable[str]) -> BaseModelRow:
    return BaseModelRow(
        accepted_names=sorted(set(accepted_names)),
        name=name,
        fingerprint=model.fingerprint,
        folder=str(folder),
        context_length=model.context_length,
        spec=msgspec.to_builtins(model),
    )


def renew(row: BaseModelRow, model: BaseModel) -> None:
    """Note what a model's folder says, of which `row` knows less: it was registered by an earlier version."""
    row.fingerprint, row.spec = model.fingerprint, msgspec.to_builtins(model)


def spec_of(row: BaseModelRow) -> BaseModel:
    return msgspec.convert(row.spec, BaseModel)


def accepted_names_of(row: BaseModelRow) -> frozenset[str]:
    """What an adapter's config may say its base is (ADP-13): the name served here, and those the operator added."""
    return frozenset((row.name, *row.accepted_names))


def _view(row: BaseModelRow) -> BaseModelView:
    return BaseModelView(
        id=row.id,
        name=row.name,
        fingerprint=row.fingerprint,
        context_length=row.context_length,
        accepted_names=row.accepted_names,
        created_at=row.created_at,
    )
