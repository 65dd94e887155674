"""HTTP routes of engines."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.control.access import Govern
from tenora_platform.control.engines import service
from tenora_platform.control.engines.schemas import EngineList
from tenora_platform.control.routes import ControlRoute

router = APIRouter(prefix="/engines", tags=["engines"], route_class=ControlRoute)


@router.get("", operation_id="listEngines")
def list_engines(work: Govern) -> EngineList:
    return service.list_engines(work.resources.redis)
