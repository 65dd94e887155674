"""HTTP routes of base models."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import Govern, See
from tenora_platform.control.base_models import service
from tenora_platform.control.base_models.schemas import AcceptedNamesChange, BaseModelView, NewBaseModel
from tenora_platform.control.fields import Id, Page
from tenora_platform.control.paging import Paging
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/base-models", tags=["base models"], route_class=ControlRoute)


@router.get("", operation_id="listBaseModels")
def list_base_models(work: See, page: Paging) -> Page[BaseModelView]:
    return service.list_base_models(work, page)


@router.post("", operation_id="registerBaseModel", status_code=201)
def register_base_model(work: Govern, body: NewBaseModel) -> BaseModelView:
    return service.register_base_model(work, body)


@router.put("/{base_model_id}/accepted-names", operation_id="setAcceptedNames")
def set_accepted_names(work: Govern, base_model_id: Id, body: AcceptedNamesChange) -> BaseModelView:
    return service.set_accepted_names(work, base_model_id, body.accepted_names)
