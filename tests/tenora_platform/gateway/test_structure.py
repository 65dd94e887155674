"""Structured output from the outside: every spelling comes down to one grammar; the engine's word is the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_under_test import Served, TenantOfTest
from scripted_engine import Script, ScriptedEngine

from tenora_engine.wire import GRAMMAR_REFUSED, FailCode, Grammar, GrammarKind
from tenora_platform.gateway.errors import InvalidRequest
from tenora_platform.gateway.requests import ChatRequest, CompletionRequest, parse
from tenora_platform.gateway.structure import structure_of

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}
SCHEMA_GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
OBJECT_GRAMMAR = Grammar(GrammarKind.JSON_OBJECT, "")
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"}}


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps(CHAT | fields).encode())


@pytest.mark.parametrize(
    ("fields", "grammar", "param"),
    [
        ({"response_format": FORMAT}, SCHEMA_GRAMMAR, "response_format"),
        ({"response_format": {"type": "json_object"}}, OBJECT_GRAMMAR, "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_GRAMMAR, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, SCHEMA_GRAMMAR, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, OBJECT_GRAMMAR, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, Grammar(GrammarKind.REGEX, "a+"), "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["é"]}},
            Grammar(GrammarKind.CHOICE, '["\\u00e9"]'),
            "structured_outputs.choice",
        ),
        ({"structured_outputs": {"grammar": "r"}}, Grammar(GrammarKind.EBNF, "r"), "structured_outputs.grammar"),
        ({"guided_json": SCHEMA}, SCHEMA_GRAMMAR, "guided_json"),
        ({"guided_regex": "a"}, Grammar(GrammarKind.REGEX, "a"), "guided_regex"),
        ({"guided_choice": ["a", "b"]}, Grammar(GrammarKind.CHOICE, '["a", "b"]'), "guided_choice"),
        ({"guided_grammar": "r"}, Grammar(GrammarKind.EBNF, "r"), "guided_grammar"),
    ],
)
def test_every_spelling(fields: dict[str, Any], grammar: Grammar, param: str) -> None:
    for asked in (
        chat(**fields),
        parse(CompletionRequest, json.dumps({"model": "m", "prompt": "x"} | fields).encode()),
    ):
        structure = structure_of(asked)
        assert structure is not None
        assert (structure.grammar, structure.param) == (grammar, param)


def test_text_is_no_structure() -> None:
    assert structure_of(chat()) is None
    assert structure_of(chat(response_format={"type": "text"}, structured_outputs={"json_object": False})) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "json_schema": FORMAT["json_schema"]}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x y", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {"lark": "x"}}, "structured_outputs.lark"),
    ],
)
def test_what_is_malformed_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """STR-05"""
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_two_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        structure_of(chat(response_format=FORMAT, guided_regex="a"))
    assert caught.value.param == "guided_regex"


def test_the_stock_client_asks_for_a_schema(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    answer = gateway.client(tenant.key).chat.completions.create(**CHAT, response_format=FORMAT)  # type: ignore[arg-type]
    assert answer.choices[0].finish_reason == "stop"
    assert [submit.grammar for submit in engine.submits] == [SCHEMA_GRAMMAR]


def test_the_engines_refusal_names_the_parameter(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """STR-01, STR-05: 400 in OpenAI's shape; nothing is billed, and the next request is served."""
    reason = GRAMMAR_REFUSED + "#: 'uniqueItems' would not be enforced."
    engine.scripts = [Script(pieces=(), fail=FailCode.INVALID, message=reason)] * 2
    for stream in (False, True):
        refused = gateway.post(tenant.key, "chat/completions", CHAT | {"response_format": FORMAT, "stream": stream})
        assert refused.status_code == 400
        assert refused.json()["error"] == {
            "message": reason,
            "type": "invalid_request_error",
            "param": "response_format",
            "code": "invalid_value",
        }
    assert gateway.post(tenant.key, "chat/completions", CHAT | {"response_format": FORMAT}).status_code == 200


def test_sampling_parameters_reach_the_engine(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, token_ids: dict[bytes, int]
) -> None:
    """A stop token of the client's is billed and is no text."""
    stop = token_ids[b" ok"]
    body = CHAT | {"typical_p": 0.5, "stop_token_ids": [stop]}
    answer = gateway.post(tenant.key, "chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["usage"]["completion_tokens"] == 2
    sampling = engine.submits[-1].sampling
    assert sampling.typical_p == 0.5
    assert stop in sampling.stop_token_ids
    assert len(sampling.stop_token_ids) > 1
    gateway.post(tenant.key, "chat/completions", body | {"ignore_eos": True})
    assert engine.submits[-1].sampling.stop_token_ids == (stop,)
    refused = gateway.post(tenant.key, "chat/completions", CHAT | {"stop_token_ids": [10**6]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop_token_ids")
