"""Who may do what, decided in one place.

Every endpoint declares the right it needs by the dependency it takes:

    in_tenant      a transaction that sees one tenant's rows, for `/tenants/{tenant_id}/...`
    may            the same check without a transaction
    on_platform    a transaction that sees what the caller may see at all
    Signed         just the principal

A caller whose tenant is another gets 404, as for a tenant that does not exist; a caller whose role lacks the right
gets 403.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from fastapi import Depends, Request

from tenora_platform.control.errors import Forbidden, NotFound
from tenora_platform.control.resources import Resources
from tenora_platform.control.sessions.service import Principal, authenticate
from tenora_platform.control.transaction import Transaction, transaction
from tenora_platform.db.models import Role, Tenant
from tenora_platform.db.session import PLATFORM

SESSION_COOKIE: Final = "tenora_session"
CSRF_HEADER: Final = "X-Tenora-Request"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Right(StrEnum):
    SEE = "see"  # the tenant itself, and what base models there are
    READ = "read"  # its adapters, keys, quota
    WRITE = "write"  # change them
    BOOKS = "books"  # read its usage and exports
    CLOSE = "close"  # make exports
    PLATFORM = "platform"  # tenants, quotas, prices, base models, audit, engines


_RIGHTS: Final = {
    Role.PLATFORM_ADMIN: frozenset(Right),
    Role.TENANT_ADMIN: frozenset({Right.SEE, Right.READ, Right.WRITE, Right.BOOKS, Right.CLOSE}),
    Role.TENANT_VIEWER: frozenset({Right.SEE, Right.READ, Right.BOOKS}),
    Role.BILLING: frozenset({Right.SEE, Right.BOOKS}),
}


def resources(request: Request) -> Resources:
    held: Resources = request.app.state.resources
    return held


def protect_from_forgery(request: Request) -> None:
    """A page of another site can send our cookie along, but not this header. Raises Forbidden."""
    if request.method not in _SAFE and request.headers.get(CSRF_HEADER) != "1":
        raise Forbidden(f"Requests that change something need the header {CSRF_HEADER}: 1.", code="csrf")


def principal(request: Request, held: Annotated[Resources, Depends(resources)]) -> Principal:
    """Who is calling. Raises Unauthenticated."""
    return authenticate(held, request.cookies.get(SESSION_COOKIE))


Held = Annotated[Resources, Depends(resources)]
Signed = Annotated[Principal, Depends(principal)]


@dataclass(frozen=True)
class TenantWork:
    """A transaction inside one tenant."""

    work: Transaction
    tenant: Tenant
    principal: Principal


def check(caller: Principal, right: Right, tenant_id: uuid.UUID | None) -> None:
    """`tenant_id` is None for what belongs to the platform. Raises NotFound, Forbidden."""
    if tenant_id is not None and caller.tenant_id not in (None, tenant_id):
        raise NotFound("tenant")
    if right not in _RIGHTS[caller.role]:
        raise Forbidden("Your role does not allow this.")


def in_tenant(right: Right) -> Callable[..., Iterator[TenantWork]]:
    """A dependency: the caller holds `right` in the tenant of the path, and that tenant exists."""

    def dependency(tenant_id: uuid.UUID, caller: Signed, held: Held) -> Iterator[TenantWork]:
        check(caller, right, tenant_id)
        with transaction(held, tenant_id, caller.username) as work:
            tenant = work.session.get(Tenant, tenant_id)
            if tenant is None:
                raise NotFound("tenant")
            yield TenantWork(work, tenant, caller)

    return dependency


def may(right: Right) -> Callable[..., Principal]:
    """A dependency: the same check, in a transaction of its own, for what is too slow to be one transaction."""

    def dependency(tenant_id: uuid.UUID, caller: Signed, held: Held) -> Principal:
        check(caller, right, tenant_id)
        with transaction(held, tenant_id, caller.username) as work:
            if work.session.get(Tenant, tenant_id) is None:
                raise NotFound("tenant")
        return caller

    return dependency


def on_platform(right: Right = Right.PLATFORM) -> Callable[..., Iterator[Transaction]]:
    """A dependency: the caller holds `right`; the transaction sees what the caller may see at all."""

    def dependency(caller: Signed, held: Held) -> Iterator[Transaction]:
        check(caller, right, None)
        with transaction(held, caller.tenant_id or PLATFORM, caller.username) as work:
            yield work

    return dependency


# Function scope: the transaction ends before the answer leaves, so that an answer never speaks of what was not
# committed.
SeeTenant = Annotated[TenantWork, Depends(in_tenant(Right.SEE), scope="function")]
ReadTenant = Annotated[TenantWork, Depends(in_tenant(Right.READ), scope="function")]
WriteTenant = Annotated[TenantWork, Depends(in_tenant(Right.WRITE), scope="function")]
MayWrite = Annotated[Principal, Depends(may(Right.WRITE))]
ReadBooks = Annotated[TenantWork, Depends(in_tenant(Right.BOOKS), scope="function")]
CloseBooks = Annotated[TenantWork, Depends(in_tenant(Right.CLOSE), scope="function")]
GovernTenant = Annotated[TenantWork, Depends(in_tenant(Right.PLATFORM), scope="function")]
See = Annotated[Transaction, Depends(on_platform(Right.SEE), scope="function")]
Govern = Annotated[Transaction, Depends(on_platform(), scope="function")]
