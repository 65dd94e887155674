"""HTTP routes of sessions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tenora_platform.control.access import SESSION_COOKIE, Held, Signed
from tenora_platform.control.routes import PREFIX, ControlRoute
from tenora_platform.control.sessions import service
from tenora_platform.control.sessions.schemas import SessionView, SignIn, UserView

router = APIRouter(prefix="/session", tags=["sessions"], route_class=ControlRoute)


@router.post("", operation_id="signIn")
def sign_in(body: SignIn, response: Response, held: Held) -> SessionView:
    new = service.sign_in(held, body.username, body.password)
    response.set_cookie(
        SESSION_COOKIE,
        new.token,
        max_age=int(service.LIFETIME.total_seconds()),
        path=PREFIX,  # the gateway never sees it
        httponly=True,
        samesite="strict",
        secure=not held.settings.insecure_cookies,
    )
    return _view(new.principal)


@router.get("", operation_id="getSession")
def get_session(caller: Signed) -> SessionView:
    return _view(caller)


@router.delete("", operation_id="signOut", status_code=204)
def sign_out(request: Request, response: Response, _caller: Signed, held: Held) -> None:
    service.sign_out(held, request.cookies[SESSION_COOKIE])
    response.delete_cookie(SESSION_COOKIE, path=PREFIX, httponly=True, samesite="strict")


def _view(caller: service.Principal) -> SessionView:
    user = UserView(id=caller.user_id, username=caller.username, role=caller.role, tenant_id=caller.tenant_id)
    return SessionView(user=user)
