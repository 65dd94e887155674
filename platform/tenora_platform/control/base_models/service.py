"""The base models that adapters are made for, known by fingerprint."""

from __future__ import annotations

from pathlib import Path

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from tenora_adapters.base import BaseModel, BaseModelError, read_base_model
from tenora_platform.changes import Change, ChangeKind
from tenora_platform.control.audit.service import record
from tenora_platform.control.base_models.schemas import BaseModelView, NewBaseModel
from tenora_platform.control.errors import Conflict, InvalidRequest
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
        row = new_row(new.name, folder, read_base_model(folder))
    except BaseModelError as error:
        raise InvalidRequest(str(error), code="bad_base_model", param="folder") from error
    work.session.add(row)
    try:
        work.session.flush()
    except IntegrityError as error:
        raise Conflict("A base model of this name, or this very model, is registered already.") from error
    record(work, "base_model.register", row.id, tenant_id=None, name=row.name, fingerprint=row.fingerprint)
    work.publish(Change(ChangeKind.BASE_MODEL, None))
    return _view(row)


def new_row(name: str, folder: Path, model: BaseModel) -> BaseModelRow:
    return BaseModelRow(
        name=name,
        fingerprint=model.fingerprint,
        folder=str(folder),
        context_length=model.context_length,
        spec=msgspec.to_builtins(model),
    )


def spec_of(row: BaseModelRow) -> BaseModel:
    return msgspec.convert(row.spec, BaseModel)


def _view(row: BaseModelRow) -> BaseModelView:
    return BaseModelView(
        id=row.id,
        name=row.name,
        fingerprint=row.fingerprint,
        context_length=row.context_length,
        created_at=row.created_at,
    )
