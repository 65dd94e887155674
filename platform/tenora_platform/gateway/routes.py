"""`/v1`, as OpenAI's clients know it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final, Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenora_platform.gateway.chat import ChatEndpoint
from tenora_platform.gateway.completions import CompletionEndpoint
from tenora_platform.gateway.delivery import CLIENT_CLOSED_REQUEST, deliver, error_response
from tenora_platform.gateway.directory import Directory, Model
from tenora_platform.gateway.edge import ClientGone, bearer_key, read_body
from tenora_platform.gateway.errors import GatewayError, GenerationFailed, ModelNotFound, NoSuchRoute
from tenora_platform.gateway.flow import Endpoint, Generations

_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_log = logging.getLogger(__name__)


class ModelBody(msgspec.Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelBody]
    object: Literal["list"] = "list"


def make_router(generations: Generations, directory: Directory, max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["inference"])
    chat, completion = ChatEndpoint(), CompletionEndpoint()

    async def generate(request: Request, endpoint: Endpoint) -> Response:
        principal = await directory.authenticate(bearer_key(request))
        body = await read_body(request, max_body_bytes)
        return await deliver(request, generations.run(principal, body, endpoint))

    @router.post("/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        return await _answered(generate(request, chat))

    @router.post("/completions")
    async def create_completion(request: Request) -> Response:
        return await _answered(generate(request, completion))

    @router.get("/models")
    async def list_models(request: Request) -> Response:
        return await _answered(_list_models(request, directory))

    @router.get("/models/{model_id:path}")
    async def retrieve_model(request: Request, model_id: str) -> Response:
        return await _answered(_retrieve_model(request, directory, model_id))

    @router.api_route("/{path:path}", methods=_METHODS, include_in_schema=False)
    async def unknown(request: Request, path: str) -> Response:
        return error_response(NoSuchRoute(f"Unknown request URL: {request.method} /v1/{path[:200]}."))

    return router


async def _list_models(request: Request, directory: Directory) -> Response:
    principal = await directory.authenticate(bearer_key(request))
    return _json(ModelList([_model_body(model) for model in await directory.models(principal)]))


async def _retrieve_model(request: Request, directory: Directory, model_id: str) -> Response:
    """Only what the list shows: a name with a version is for asking, not for looking up."""
    principal = await directory.authenticate(bearer_key(request))
    for model in await directory.models(principal):
        if model.name == model_id:
            return _json(_model_body(model))
    raise ModelNotFound(model_id)


def _model_body(model: Model) -> ModelBody:
    owner = "tenora" if model.version is None else "tenant"
    return ModelBody(id=model.name, created=int(model.created_at.timestamp()), owned_by=owner)


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _answered(work: Awaitable[Response]) -> Response:
    """Every failure in OpenAI's shape, the unforeseen as well: their text stays in our log."""
    try:
        return await work
    except GatewayError as error:
        return error_response(error)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # to nobody, but the log should not say 200
    except Exception:  # noqa: BLE001  # logged, and told as a 500
        _log.exception("a request failed")
        return error_response(GenerationFailed("The server failed on this request."))
