"""Tenant scope cannot be forgotten: a query on a tenant-owned table starts from `scoped()` or names the tenant."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tenora_platform.db.models import Base

PRODUCT = Path("platform/tenora_platform")
# Code that works for all tenants at once, or on one row that it was handed by id, under the platform's own scope.
FOR_ALL_TENANTS = {
    "control/adapters/storing.py",  # files belong to everybody who uploaded them
    "control/adapters/tasks.py",  # jobs: the version's id comes from the queue
    "control/audit/service.py",  # the platform's own list of what was changed
    "control/uploads/limits.py",  # counts everybody's
    "control/uploads/tasks.py",
    "control/exports/making.py",  # takes the export's row
    "control/exports/tasks.py",
    "db/session.py",  # defines scoped()
    "gateway/catalog.py",  # finds the tenant by its key, then filters by it in SQL
    "usage/shipper.py",  # books events of every tenant
}


def tenant_owned() -> set[str]:
    owned = {m.class_.__name__ for m in Base.registry.mappers if "tenant_id" in m.columns}
    return owned - {"User"}  # signing in finds the user, and with it the tenant


def unscoped_queries(source: str, owned: set[str]) -> Iterator[int]:
    """Lines of `select`, `update` and `delete` of a tenant-owned table in statements that do not name the tenant."""
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.If | ast.For):
            continue
        expression = (
            statement.test
            if isinstance(statement, ast.If)
            else statement.iter
            if isinstance(statement, ast.For)
            else statement.value
        )
        if expression is None:
            continue
        for call in ast.walk(expression):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"select", "update", "delete", "sa.select"}:
                models = {
                    name.id for argument in call.args for name in ast.walk(argument) if isinstance(name, ast.Name)
                }
                if models & owned and ".tenant_id == " not in ast.unparse(expression):
                    yield call.lineno


def test_queries_on_tenant_owned_tables_name_the_tenant(repository: Path) -> None:
    owned = tenant_owned()
    assert {"ApiKey", "Adapter", "AdapterVersion", "Quota", "UsageEventRow", "Export"} <= owned
    found = []
    for file in sorted((repository / PRODUCT).rglob("*.py")):
        name = file.relative_to(repository / PRODUCT).as_posix()
        if name not in FOR_ALL_TENANTS:
            found += [f"{name}:{line}" for line in unscoped_queries(file.read_text(), owned)]
    assert found == []


def test_the_exceptions_still_exist(repository: Path) -> None:
    assert {name for name in FOR_ALL_TENANTS if not (repository / PRODUCT / name).exists()} == set()


def test_the_rule_itself_sees_a_forgotten_scope() -> None:
    owned = tenant_owned()
    assert list(unscoped_queries("rows = session.scalars(select(ApiKey).where(ApiKey.id == key_id))", owned)) == [1]
    assert list(unscoped_queries("rows = session.scalars(select(ApiKey).where(ApiKey.tenant_id == t))", owned)) == []
    assert list(unscoped_queries("if session.scalar(select(exists(select(Adapter.id)))): pass", owned)) != []
    assert list(unscoped_queries("rows = session.scalars(scoped(ApiKey, t))", owned)) == []
