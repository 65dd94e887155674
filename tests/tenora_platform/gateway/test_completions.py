"""`/v1/completions` from the outside."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_under_test import CONTEXT, Served, TenantOfTest, strict_json
from scripted_engine import Script, ScriptedEngine


def test_the_stock_client_streamed_and_not(gateway: Served, tenant: TenantOfTest) -> None:
    client = gateway.client(tenant.key)
    whole = client.completions.create(model="toy", prompt="x")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Hello ok", "stop")
    with client.completions.create(model="toy", prompt="x", stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello ok"
    assert whole.id.startswith("cmpl-")
    assert [row.endpoint for row in tenant.wait_for_usage(2)] == ["completions"] * 2


def test_token_ids_are_the_text_that_encodes_to_them(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    """API-06: nothing is put before them."""
    for prompt in ("abc", [97, 98, 99], [[97, 98, 99]], ["abc"]):
        assert gateway.post(tenant.key, "completions", {"model": "toy", "prompt": prompt}).status_code == 200
    assert [submit.token_ids for submit in engine.submits] == [[97, 98, 99]] * 4


def test_several_prompts_are_several_choices(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-06: one event for all of them."""
    engine.respond = lambda submit: Script(pieces=(b"Hello",) if submit.token_ids == [97, 98] else (b" ok", b" world"))
    body = {"model": "toy", "prompt": [[97, 98], [99]], "n": 2}
    answer = gateway.post(tenant.key, "completions", body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Hello", "Hello", " ok world", " ok world"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 6)
    (row,) = tenant.wait_for_usage()
    assert (row.prompt_tokens, row.completion_tokens) == (3, 6)
    events = gateway.stream(tenant.key, "completions", body)
    texts = [""] * 4
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["Hello", "Hello", " ok world", " ok world"]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", None),
        ([], None),
        ([10**6], None),
        ([1, 10**6], None),
        ("x" * CONTEXT, "context_length_exceeded"),
        ("x" * (CONTEXT + 1), "context_length_exceeded"),
        ("x" * 50_000, "context_length_exceeded"),
    ],
)
def test_prompts_that_cannot_run(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, prompt: Any, code: str | None
) -> None:
    """API-06: refused by name, and the engine never sees them."""
    answer = gateway.post(tenant.key, "completions", {"model": "toy", "prompt": prompt})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "prompt")
    if code:
        assert error["code"] == code
    assert engine.submits == []


def test_a_prompt_that_leaves_room_for_one_token(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-06"""
    engine.default = Script(endless=True)
    answer = gateway.post(tenant.key, "completions", {"model": "toy", "prompt": "x" * (CONTEXT - 1)}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_the_prompt_alone_with_its_log_probabilities(gateway: Served, tenant: TenantOfTest) -> None:
    """API-05: max_tokens 0 with echo."""
    body = {"model": "toy", "prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = strict_json(gateway.post(tenant.key, "completions", body).content)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 0)
    assert tenant.wait_for_usage()[0].completion_tokens == 0


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_no_tokens_and_no_echo(gateway: Served, tenant: TenantOfTest, max_tokens: int) -> None:
    """API-05: refused; the server lives on."""
    body = {"model": "toy", "prompt": "abc", "max_tokens": max_tokens}
    assert gateway.post(tenant.key, "completions", body).json()["error"]["param"] == "max_tokens"
    assert gateway.post(tenant.key, "completions", {"model": "toy", "prompt": "abc"}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_log_probabilities_line_up(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, stream: bool
) -> None:
    """Offsets count characters of the text, also where a character takes several tokens."""
    engine.default = Script(pieces=(b"\xf0\x9f", b"\x98", b"\x80", b" ok"), top=((b" world", -1.5),))
    body = {"model": "toy", "prompt": "a語", "echo": True, "logprobs": 1}
    if stream:
        events = gateway.stream(tenant.key, "completions", body)
        choices = [choice for event in events for choice in event["choices"]]
    else:
        choices = gateway.post(tenant.key, "completions", body).json()["choices"]
    text = "".join(choice["text"] for choice in choices)
    merged = {
        name: [item for choice in choices if choice["logprobs"] for item in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert text == "a語😀 ok"
    assert merged["text_offset"] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert merged["token_logprobs"] == [None] + [-0.5] * 7
    assert merged["top_logprobs"][-1] == {" world": -1.5, " ok": -0.5}


def test_a_stop_string_is_not_looked_for_in_the_echo(gateway: Served, tenant: TenantOfTest) -> None:
    body = {"model": "toy", "prompt": "ab", "echo": True, "stop": "a"}
    assert gateway.post(tenant.key, "completions", body).json()["choices"][0]["text"] == "abHello ok"
