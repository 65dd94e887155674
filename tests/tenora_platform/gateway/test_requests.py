"""Request bodies: what is taken, and how what is not is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenora_platform.gateway.errors import InvalidRequest
from tenora_platform.gateway.requests import ChatRequest, CompletionRequest, parse

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def chat(raw: str = "", **fields: Any) -> ChatRequest:
    """The request of `fields`; `raw` is JSON that no client library would write, put in as it stands."""
    body = json.dumps({**HELLO, **fields})
    return parse(ChatRequest, (body[:-1] + (f", {raw}" if raw else "") + "}").encode())


def refused(raw: str = "", **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(raw, **fields)
    return caught.value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "true", '"1"', "[]"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"])
def test_what_is_no_finite_number_is_refused(field: str, number: str) -> None:
    """API-11"""
    assert refused(f'"{field}": {number}').param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 1.1),
        ("min_p", -1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("typical_p", 0),
        ("typical_p", 1.1),
        ("stop_token_ids", list(range(65))),
        ("n", 0),
        ("n", -1),
        ("n", 10**6),
        ("n", True),
        ("n", 1.0),
        ("seed", 2**63),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 5),
        ("stop", "x" * 10_000),
        ("stop", [1]),
        ("top_logprobs", 21),
        ("top_logprobs", 10**6),
        ("top_logprobs", -1),
        ("logprobs", 5),
        ("stream", "yes"),
        ("model", ""),
        ("model", 1),
    ],
)
def test_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    """API-07, API-08, API-11, API-13, API-14"""
    assert refused(**{field: value}).param == field


@pytest.mark.parametrize("value", [0, 1e-12, 1e-6, 2, 2.0])
def test_every_temperature_of_the_range_is_taken(value: float) -> None:
    """API-11"""
    assert chat(temperature=value).temperature == value


@pytest.mark.parametrize(("stop", "expected"), [(None, ()), ([], ()), ("a", ("a",)), (["a", "b"], ("a", "b"))])
def test_stop_forms(stop: Any, expected: tuple[str, ...]) -> None:
    """API-13: null and [] mean none."""
    assert chat(stop=stop).stops == expected


@pytest.mark.parametrize(
    ("biases", "named"),
    [
        ('{"AI": 1}', "AI"),
        ('{"-1": 1}', "-1"),
        ('{"1.5": 1}', "1.5"),
        ('{"5": 101}', "5"),
        ('{"5": "5"}', ""),
        ('{"5": NaN}', ""),
        ("{" + ", ".join(f'"{i}": 1' for i in range(5000)) + "}", ""),
    ],
)
def test_bad_logit_bias_names_the_key(biases: str, named: str) -> None:
    """API-10"""
    error = refused(f'"logit_bias": {biases}')
    assert error.param == "logit_bias"
    assert named in error.message


@pytest.mark.parametrize(
    "field",
    [
        "cache_salt",
        "priority",
        "adapter_path",
        "prompt_embeds",
        "chat_template",
        "chat_template_kwargs",
        "kv_transfer_params",
        "api_base",
    ],
)
def test_internal_fields_are_refused_by_name(field: str) -> None:
    """API-23"""
    error = refused(**{field: "x"})
    assert (error.status, error.param, error.code) == (400, field, "unknown_parameter")


@pytest.mark.parametrize("field", ["tools", "tool_choice", "functions"])
def test_what_is_not_built_says_so(field: str) -> None:
    error = refused(**{field: [{}]})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "foo", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0]"),
        ([{"role": "user", "content": None}], "messages[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
            "messages[0].content",
        ),
        ([{"role": "user", "content": [{"type": "audio"}]}], "messages[0].content"),
        ([{"role": "user", "content": "x", "secret": 1}], "messages[0].secret"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
        ("hi", "messages"),
    ],
)
def test_bad_messages_are_refused_where_they_are(messages: Any, param: str) -> None:
    """API-15"""
    assert refused(messages=messages).param == param


def test_message_shapes_that_are_taken() -> None:
    """API-15: parts are joined as they stand; an empty list of tool calls is none."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "system", "content": "t"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant"},
            {"role": "assistant", "content": []},
            {"role": "user", "content": ""},
        ]
    )
    assert [message.text for message in asked.messages] == ["s", "t", "ab", "", "", "", ""]


def test_stream_options_need_a_stream() -> None:
    """API-17"""
    assert refused(stream_options={"include_usage": True}).param == "stream_options"
    assert refused(stream_options={"include_usage": True}, stream=False).param == "stream_options"
    assert refused(stream_options={"unknown": True}, stream=True).param == "stream_options.unknown"
    assert chat(stream_options={"include_usage": True}, stream=True).include_usage
    assert not chat(stream_options={"include_usage": False}, stream=True).include_usage


def test_top_logprobs_need_logprobs() -> None:
    """API-08"""
    assert refused(top_logprobs=2).param == "top_logprobs"
    assert refused(top_logprobs=2, logprobs=False).param == "top_logprobs"


def test_both_names_of_max_tokens_must_agree() -> None:
    assert refused(max_tokens=1, max_completion_tokens=2).param == "max_tokens"
    assert chat(max_tokens=2, max_completion_tokens=2).max_tokens == 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"null", b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """API-23: nesting included."""
    with pytest.raises(InvalidRequest):
        parse(ChatRequest, body)


def test_deep_nesting_inside_a_field_is_refused() -> None:
    """API-23"""
    assert refused('"x": ' + "[" * 100_000 + "]" * 100_000).status == 400


@pytest.mark.parametrize("prompt", ["", [], [[]], [-1], [True], [1.5], ["a", 1], ["a", ""], [[1], []], [[1], "a"], {}])
def test_bad_prompts_are_refused(prompt: Any) -> None:
    """API-06"""
    with pytest.raises(InvalidRequest) as caught:
        parse(CompletionRequest, json.dumps({"model": "m", "prompt": prompt}).encode())
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ([1, 2, 3], [[1, 2, 3]]), ([[1, 2], [3]], [[1, 2], [3]]), (["a", "b"], ["a", "b"]), ([0], [[0]])],
)
def test_prompt_forms(prompt: Any, prompts: Any) -> None:
    """API-06"""
    assert parse(CompletionRequest, json.dumps({"model": "m", "prompt": prompt}).encode()).prompts == prompts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 10**6}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ],
)
def test_completion_parameters_refused(fields: dict[str, Any], param: str) -> None:
    """API-05, API-07"""
    with pytest.raises(InvalidRequest) as caught:
        parse(CompletionRequest, json.dumps({"model": "m", "prompt": "x", **fields}).encode())
    assert caught.value.param == param


def test_no_answer_echoes_a_large_value_back() -> None:
    assert len(refused(**{"x" * 5000: 1}).message) < 300
    assert len(refused(stop="x" * 50_000).message) < 300
