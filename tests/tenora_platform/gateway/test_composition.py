"""Several adapters in one request, each at its scale."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import httpx
import pytest
from gateway_under_test import BASE, Served, TenantOfTest
from scripted_engine import ScriptedEngine

from tenora_engine.wire import AdapterUse


def ask(gateway: Served, key: str, adapters: Any, model: str = BASE) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "adapters": adapters}
    return gateway.post(key, "chat/completions", body)


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["param"]


def test_adapters_reach_the_engine_and_the_bill(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine):
    a, b = tenant.adapter("a"), tenant.adapter("b")
    tenant.adapter("b")  # a second version
    answer = ask(gateway, tenant.key, [{"name": "a", "scale": 0.7}, {"name": "b@1"}])
    assert answer.status_code == 200, answer.text
    assert engine.submits[-1].adapters == (AdapterUse(a, 0.7), AdapterUse(b, 1.0))
    (event,) = tenant.wait_for_usage()
    framed = bytes.fromhex(a) + struct.pack("<d", 0.7) + bytes.fromhex(b) + struct.pack("<d", 1.0)
    digest = hashlib.sha256(b"tenora.composition.v1\0" + framed).hexdigest()
    assert (event.base_model, event.adapter, event.version_digest) == (BASE, "a@1*0.7+b@1", digest)
    assert answer.json()["system_fingerprint"].split(".")[1] == digest[:12]
    assert answer.json()["model"] == BASE


def test_the_adapter_of_the_model_comes_first(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine):
    a, b = tenant.adapter("a"), tenant.adapter("b")
    assert ask(gateway, tenant.key, [{"name": "b", "scale": -2}], f"{BASE}:a").status_code == 200
    assert engine.submits[-1].adapters == (AdapterUse(a), AdapterUse(b, -2.0))
    assert tenant.wait_for_usage()[0].adapter == "a@1+b@1*-2.0"


def test_one_adapter_at_a_scale_and_none(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine):
    """One at scale 1 is billed as what it is: that adapter."""
    a = tenant.adapter("a")
    for adapters in ([{"name": "a", "scale": 0.5}], [{"name": "a"}], [], None):
        assert ask(gateway, tenant.key, adapters).status_code == 200
    assert [submit.adapters for submit in engine.submits] == [(AdapterUse(a, 0.5),), (AdapterUse(a),), (), ()]
    events = tenant.wait_for_usage(4)
    assert [(event.adapter, event.version_digest) for event in events] == [
        ("a@1*0.5", a),
        ("a", a),
        (None, None),
        (None, None),
    ]


def test_another_tenants_adapter_is_as_one_that_does_not_exist(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
):
    other = tenant.database.tenant()
    other.adapter("secret")
    tenant.adapter("a")
    answers = [ask(gateway, tenant.key, [{"name": "a"}, {"name": name}]) for name in ("secret", "nobody")]
    assert [error(answer) for answer in answers] == [(404, "model_not_found", "adapters[1].name")] * 2
    assert answers[0].text.replace("secret", "nobody") == answers[1].text
    assert not engine.submits


@pytest.mark.parametrize(
    ("adapters", "param"),
    [
        ([{"name": "a"}, {"name": "a", "scale": 0.5}], "adapters[1].name"),
        ([{"name": "a"}, {"name": "a@1"}], "adapters[1].name"),
        ([{"name": name} for name in "abcde"], "adapters"),
        ([{"name": "a", "scale": 101}], "adapters[0].scale"),
        ([{"name": "a", "scale": "1"}], "adapters[0].scale"),
        ([{"name": "a", "weight": 1}], "adapters[0].weight"),
        ([{"scale": 1}], "adapters[0].name"),
        ([{"name": ""}], "adapters[0].name"),
        ("a", "adapters"),
        (["a"], "adapters[0]"),
    ],
    ids=str,
)
def test_what_cannot_be(gateway: Served, tenant: TenantOfTest, adapters: Any, param: str):
    for name in "abcde":
        tenant.adapter(name)
    answer = ask(gateway, tenant.key, adapters)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_no_number_in_json(gateway: Served, tenant: TenantOfTest):
    tenant.adapter("a")
    text = '{"model": "%s", "messages": [{"role": "user", "content": "hi"}], "adapters": [{"name": "a", "scale": %s}]}'
    for scale in ("NaN", "Infinity", "1e999"):
        assert gateway.post(tenant.key, "chat/completions", (text % (BASE, scale)).encode()).status_code == 400


def test_the_models_own_adapter_counts(gateway: Served, tenant: TenantOfTest):
    for name in "abcde":
        tenant.adapter(name)
    answer = ask(gateway, tenant.key, [{"name": name} for name in "bcde"], f"{BASE}:a")
    assert error(answer)[::2] == (400, "adapters")
    assert error(ask(gateway, tenant.key, [{"name": "a", "scale": 2}], f"{BASE}:a")) == (
        400,
        "invalid_value",
        "adapters[0].name",
    )


def test_a_key_for_one_adapter_may_scale_it_and_add_no_other(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
):
    tenant.adapter("a")
    tenant.adapter("b")
    key = tenant.database.key(tenant.id, allowed=[f"{BASE}:a"])
    assert ask(gateway, key, [{"name": "a", "scale": 0.5}]).status_code == 200
    assert error(ask(gateway, key, [{"name": "a"}, {"name": "b"}]))[0] == 404
    assert error(ask(gateway, key, [{"name": "a"}], f"{BASE}:b"))[0] == 404
    assert error(ask(gateway, key, []))[0] == 404
    of_base = tenant.database.key(tenant.id, allowed=[BASE])
    assert error(ask(gateway, of_base, [{"name": "a"}]))[0] == 404
