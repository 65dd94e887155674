"""Keys and model names: who is let in, what is found, and when it is forgotten."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from gateway_under_test import BASE, Database, TenantOfTest
from sqlalchemy import update

from tenora_platform.changes import Change, ChangeKind
from tenora_platform.db.models import Adapter, ApiKey, BaseModelRow, Quota, Tenant, VersionStatus
from tenora_platform.db.session import make_async_engine
from tenora_platform.gateway.catalog import Catalog
from tenora_platform.gateway.directory import Directory
from tenora_platform.gateway.errors import ModelNotFound, Unauthenticated, Unavailable
from tenora_platform.keys import make_key

TTL_S = 4.0


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def directory(gateway_database: str, clock: Clock) -> AsyncIterator[Directory]:
    engine = make_async_engine(gateway_database)
    yield Directory(Catalog(engine), ttl_s=TTL_S, clock=clock)
    await engine.dispose()


def revoke(database: Database, key: str) -> None:
    with database.session() as session, session.begin():
        session.execute(update(ApiKey).where(ApiKey.prefix == key[4:16]).values(revoked_at=datetime.now(UTC)))


async def test_a_key_tells_its_tenant_and_quota(directory: Directory, database: Database) -> None:
    tenant = database.tenant(requests_per_minute=5, tokens_per_minute=None)
    principal = await directory.authenticate(tenant.key)
    assert (principal.tenant_id, principal.requests_per_minute, principal.tokens_per_minute) == (tenant.id, 5, None)


async def test_a_tenant_without_a_quota_is_unlimited(directory: Directory, tenant: TenantOfTest) -> None:
    principal = await directory.authenticate(tenant.key)
    assert (principal.requests_per_minute, principal.tokens_per_minute) == (None, None)


async def test_a_revoked_key_dies_within_the_bound_in_continuous_use(
    directory: Directory, database: Database, tenant: TenantOfTest, clock: Clock
) -> None:
    """AUTH-01: with the message lost."""
    await directory.authenticate(tenant.key)
    revoke(database, tenant.key)
    for tick in range(1, 8):
        clock.s = tick * TTL_S / 8
        await directory.authenticate(tenant.key)
    clock.s = TTL_S
    with pytest.raises(Unauthenticated):
        await directory.authenticate(tenant.key)


async def test_the_news_of_a_revocation_works_at_once(
    directory: Directory, database: Database, tenant: TenantOfTest
) -> None:
    """AUTH-01"""
    await directory.authenticate(tenant.key)
    revoke(database, tenant.key)
    directory.forget(Change(ChangeKind.API_KEY, tenant.id, key_prefix=tenant.key[4:16]))
    with pytest.raises(Unauthenticated):
        await directory.authenticate(tenant.key)


async def test_a_new_key_works_though_somebody_asked_for_it_before(
    directory: Directory, database: Database, tenant: TenantOfTest, clock: Clock
) -> None:
    """AUTH-01: negative entries obey the same bound, and the same news."""
    new = make_key()
    with pytest.raises(Unauthenticated):
        await directory.authenticate(new.text)
    with database.session() as session, session.begin():
        session.add(ApiKey(tenant_id=tenant.id, name="k", prefix=new.prefix, key_sha256=new.sha256))
    with pytest.raises(Unauthenticated):
        await directory.authenticate(new.text)
    clock.s = TTL_S
    assert (await directory.authenticate(new.text)).tenant_id == tenant.id


async def test_an_expired_key_is_refused_on_the_instant(
    gateway_database: str, database: Database, tenant: TenantOfTest
) -> None:
    """AUTH-01: expiry needs no reload."""
    expiry = datetime(2030, 1, 1, tzinfo=UTC)
    key = database.key(tenant.id, expires_at=expiry)
    now = expiry - timedelta(microseconds=1)
    engine = make_async_engine(gateway_database)
    directory = Directory(Catalog(engine), ttl_s=TTL_S, clock=lambda: 0.0, now=lambda: now)
    await directory.authenticate(key)
    now = expiry
    with pytest.raises(Unauthenticated):
        await directory.authenticate(key)
    await engine.dispose()


async def test_a_disabled_tenants_keys_are_refused(
    directory: Directory, database: Database, tenant: TenantOfTest
) -> None:
    await directory.authenticate(tenant.key)
    with database.session() as session, session.begin():
        session.execute(update(Tenant).where(Tenant.id == tenant.id).values(disabled_at=datetime.now(UTC)))
    directory.forget(Change(ChangeKind.TENANT, tenant.id))
    with pytest.raises(Unauthenticated):
        await directory.authenticate(tenant.key)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda key: key[:-1] + ("a" if key[-1] != "a" else "b"),
        lambda key: key[:17] + ("a" if key[17] != "a" else "b") + key[18:],
        lambda key: key + "a",
        lambda key: key[:-1],
        lambda key: key.upper(),
        lambda key: key[:17],
        lambda _: "' OR 1=1--",
        lambda _: "x'; DROP TABLE api_keys; --",
        lambda _: "tnr_' OR 1=1-_" + "a" * 43,
        lambda key: key + "\0",
        lambda _: "",
        lambda _: "sk-" + "a" * 48,
        lambda _: "tnr_" + "\u0661" * 12 + "_" + "a" * 43,
        lambda _: "tnr_" + "a" * 12 + "_" + "a" * 100_000,
    ],
)
async def test_anything_else_is_refused_in_the_same_words(
    directory: Directory, tenant: TenantOfTest, spoil: object
) -> None:
    """AUTH-05"""
    with pytest.raises(Unauthenticated) as caught:
        await directory.authenticate(spoil(tenant.key))  # type: ignore[operator]
    assert caught.value.message == "Incorrect API key provided."
    assert (await directory.authenticate(tenant.key)).tenant_id == tenant.id


async def test_only_ones_own_adapters_resolve(directory: Directory, database: Database) -> None:
    """AUTH-06"""
    mine, theirs = database.tenant(), database.tenant()
    digest = theirs.adapter("pirate")
    their_key, my_key = await directory.authenticate(theirs.key), await directory.authenticate(mine.key)
    model = await directory.resolve(their_key, f"{BASE}:pirate")
    assert model.version is not None
    assert model.version.digest == digest
    for name in (f"{BASE}:pirate", f"{BASE}:pirate@1", f"{BASE}:{digest}", f"{BASE}:{uuid.uuid4()}"):
        with pytest.raises(ModelNotFound):
            await directory.resolve(my_key, name)
    assert [m.name for m in await directory.models(my_key)] == [BASE]
    assert [m.name for m in await directory.models(their_key)] == [BASE, f"{BASE}:pirate"]


async def test_the_same_name_of_two_tenants_is_two_adapters(directory: Directory, database: Database) -> None:
    """AUTH-06"""
    digests = {}
    for _ in range(2):
        tenant = database.tenant()
        digests[tenant.key] = tenant.adapter("support")
    for key, digest in digests.items():
        model = await directory.resolve(await directory.authenticate(key), f"{BASE}:support")
        assert model.version is not None
        assert model.version.digest == digest


async def test_versions_by_number_and_the_active_one(directory: Directory, tenant: TenantOfTest) -> None:
    first, second = tenant.adapter("bot"), tenant.adapter("bot")
    tenant.adapter("bot", status=VersionStatus.REJECTED)
    principal = await directory.authenticate(tenant.key)

    async def digest(name: str) -> str:
        version = (await directory.resolve(principal, name)).version
        assert version is not None
        return version.digest

    assert await digest(f"{BASE}:bot") == second
    assert await digest(f"{BASE}:bot@1") == first
    assert await digest(f"{BASE}:bot@2") == second
    for name in ("bot@3", "bot@0", "bot@01", "bot@-1", "bot@", "bot@latest", "bot@1@1", "bot@999999999"):
        with pytest.raises(ModelNotFound):
            await directory.resolve(principal, f"{BASE}:{name}")


@pytest.mark.parametrize(
    "name",
    ["a:b", "a/b", "../x", "..%2fx", "/etc", ".", "", "x" * 300, "a\0b", "😀", BASE, "-a", "A", "a b", "a\n"],
)
async def test_names_that_no_adapter_can_have(directory: Directory, tenant: TenantOfTest, name: str) -> None:
    """ADP-14, as far as a request can ask for one."""
    principal = await directory.authenticate(tenant.key)
    with pytest.raises(ModelNotFound):
        await directory.resolve(principal, f"{BASE}:{name}")


async def test_base_names_may_hold_colons_and_slashes(
    directory: Directory, database: Database, tenant: TenantOfTest
) -> None:
    """Resolved by look-up: the longest base that fits comes first, and a shorter one is still tried."""
    name = f"org/{uuid.uuid4().hex[:6]}:7b"
    with database.session() as session, session.begin():
        base = BaseModelRow(
            name=name, fingerprint=uuid.uuid4().hex * 2, folder="/none", context_length=8, spec={"vocab_size": 9}
        )
        session.add(base)
    try:
        principal = await directory.authenticate(tenant.key)
        assert (await directory.resolve(principal, name)).base.name == name
        with pytest.raises(ModelNotFound):
            await directory.resolve(principal, f"{name}:x")
        with pytest.raises(ModelNotFound):
            await directory.resolve(principal, name.split(":")[0])
    finally:
        with database.session() as session, session.begin():
            session.delete(session.get_one(BaseModelRow, base.id))


async def test_a_moved_adapter_and_a_deleted_one_are_seen_with_the_news(
    directory: Directory, database: Database, tenant: TenantOfTest
) -> None:
    first = tenant.adapter("bot")
    principal = await directory.authenticate(tenant.key)
    await directory.resolve(principal, f"{BASE}:bot")
    second = tenant.adapter("bot")
    assert (await directory.resolve(principal, f"{BASE}:bot")).version.digest == first  # type: ignore[union-attr]
    directory.forget(Change(ChangeKind.ADAPTER, tenant.id))
    assert (await directory.resolve(principal, f"{BASE}:bot")).version.digest == second  # type: ignore[union-attr]
    with database.session() as session, session.begin():
        session.execute(update(Adapter).where(Adapter.tenant_id == tenant.id).values(deleted_at=datetime.now(UTC)))
    directory.forget(Change(ChangeKind.ADAPTER, tenant.id))
    with pytest.raises(ModelNotFound):
        await directory.resolve(principal, f"{BASE}:bot")
    assert [model.name for model in await directory.models(principal)] == [BASE]


async def test_a_new_quota_is_seen_with_the_news(directory: Directory, database: Database) -> None:
    tenant = database.tenant(requests_per_minute=1)
    await directory.authenticate(tenant.key)
    with database.session() as session, session.begin():
        session.execute(update(Quota).where(Quota.tenant_id == tenant.id).values(requests_per_minute=2))
    directory.forget(Change(ChangeKind.QUOTA, tenant.id))
    assert (await directory.authenticate(tenant.key)).requests_per_minute == 2


async def test_a_key_for_some_models_sees_no_others(
    directory: Directory, database: Database, tenant: TenantOfTest
) -> None:
    tenant.adapter("a")
    tenant.adapter("b")
    key = await directory.authenticate(database.key(tenant.id, allowed=[f"{BASE}:a"]))
    assert [model.name for model in await directory.models(key)] == [f"{BASE}:a"]
    await directory.resolve(key, f"{BASE}:a@1")
    for name in (BASE, f"{BASE}:b"):
        with pytest.raises(ModelNotFound):
            await directory.resolve(key, name)


async def test_without_postgres_nothing_is_served_on_a_guess() -> None:
    engine = make_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(Unavailable):
        await Directory(Catalog(engine), ttl_s=TTL_S).authenticate(make_key().text)
    await engine.dispose()
