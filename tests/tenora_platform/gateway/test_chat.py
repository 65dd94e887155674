"""`/v1/chat/completions` from the outside."""

from __future__ import annotations

import uuid
from typing import Any

import openai
import pytest
from gateway_under_test import CONTEXT, FINGERPRINT, SECRET, Database, Served, TenantOfTest, contents, strict_json
from scripted_engine import Script, ScriptedEngine

from tenora_engine.wire import AdapterUse, FinishReason
from tenora_platform.gateway.salt import cache_salt

ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_stock_client_streamed_and_not(gateway: Served, tenant: TenantOfTest) -> None:
    client = gateway.client(tenant.key)
    whole = client.chat.completions.create(**ASK)
    assert whole.choices[0].message.content == "Hello ok"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    with client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello ok"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].id != whole.id


def test_the_body_has_openais_shape(gateway: Served, tenant: TenantOfTest) -> None:
    digest = tenant.adapter("pirate")
    answer = gateway.post(tenant.key, "chat/completions", {**ASK, "model": "toy:pirate"})
    body = answer.json()
    assert answer.headers["x-request-id"] == body["id"]
    assert body["id"].startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    body.pop("id")
    assert body == {
        "object": "chat.completion",
        "model": "toy:pirate",
        "system_fingerprint": f"{FINGERPRINT[:12]}.{digest[:12]}.scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello ok", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 21,
            "completion_tokens": 2,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_what_the_engine_is_sent(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, token_ids: dict[bytes, int], vocab_size: int
) -> None:
    """The rendered template with no token put before it, the tenant's salt, the version's digest, and every knob."""
    digest = tenant.adapter("pirate")
    knobs = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2, "max_completion_tokens": 9,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"5": -100},
        "logprobs": True, "top_logprobs": 3, "user": "somebody", "min_tokens": 1, "stop": ["x"],
    }  # fmt: skip
    assert gateway.post(tenant.key, "chat/completions", {**ASK, "model": "toy:pirate", **knobs}).status_code == 200
    (submit,) = engine.submits
    start, end = vocab_size - 2, vocab_size - 1
    expected = [start, *b"user\nhi", end, *b"\n", start, *b"assistant\n"]
    assert submit.token_ids == expected
    assert submit.tenant == str(tenant.id)
    assert submit.cache_salt == cache_salt(SECRET.encode(), tenant.id)
    assert submit.adapters == (AdapterUse(digest),)
    assert submit.base_fingerprint == FINGERPRINT
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.seed, sampling.n, sampling.max_tokens, sampling.min_tokens) == (7, 2, 9, 1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    assert sampling.logit_bias == {5: -100}
    assert sampling.logprobs == 3
    assert sampling.stop_token_ids == (end,)


@pytest.mark.parametrize("top_k", [-1, 0, 10**9])
def test_top_k_that_limits_nothing_is_off(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, top_k: int
) -> None:
    """API-13"""
    gateway.post(tenant.key, "chat/completions", {**ASK, "top_k": top_k})
    assert engine.submits[0].sampling.top_k == 0


def test_ignore_eos_leaves_no_end_token(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    gateway.post(tenant.key, "chat/completions", {**ASK, "ignore_eos": True})
    assert engine.submits[0].sampling.stop_token_ids == ()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_over_several_tokens(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, stream: bool
) -> None:
    """API-01: nothing of it is shown, the engine is told to end, and what follows is not billed."""
    engine.scripts = [Script(pieces=(b"DEF", b"G", b"HI", b"J", b"K", b"K", b"K"))]
    body = {**ASK, "stop": ["DEFGHIJ"]}
    if stream:
        events = gateway.stream(tenant.key, "chat/completions", body)
        text, finish = "".join(contents(events)), events[-1]["choices"][0]["finish_reason"]
        assert not any(contents(events))
    else:
        choice = gateway.post(tenant.key, "chat/completions", body).json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == ("", "stop")
    (row,) = tenant.wait_for_usage()
    assert row.completion_tokens == 4


@pytest.mark.parametrize("per_step", [2, 7])
def test_tokens_after_a_stop_string_are_not_billed(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, per_step: int
) -> None:
    """API-01, BILL-10: also where the engine made several at once, so that they had come before it could be told."""
    engine.scripts = [Script(pieces=(b"DEF", b"G", b"END", b"K", b"K", b"K", b"K"), per_step=per_step)]
    body = {**ASK, "stop": ["END"], "logprobs": True}
    answer = gateway.post(tenant.key, "chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"] == "DEFG"
    assert len(answer["choices"][0]["logprobs"]["content"]) == 3
    assert answer["usage"]["completion_tokens"] == 3
    assert tenant.wait_for_usage()[0].completion_tokens == 3


def test_the_engine_is_told_to_end_at_a_stop_string(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    """API-01"""
    engine.scripts = [Script(pieces=(b"END",), endless=True, pause_after=1)]
    gateway.post(tenant.key, "chat/completions", {**ASK, "stop": "END"})
    engine.wait_for(lambda: len(engine.aborts) == 1)
    (row,) = tenant.wait_for_usage()
    assert (row.completion_tokens, row.outcome) == (1, "completed")


def test_text_held_back_for_nothing_is_released(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-01: also when the answer ends while it is held."""
    engine.scripts = [Script(pieces=(b"DEF", b"G", b"HI", b"J", b"K")), Script(pieces=(b"Hello", b"DEF"))]
    assert "".join(contents(gateway.stream(tenant.key, "chat/completions", {**ASK, "stop": ["DEFX"]}))) == "DEFGHIJK"
    assert "".join(contents(gateway.stream(tenant.key, "chat/completions", {**ASK, "stop": ["DEFX"]}))) == "HelloDEF"


def test_a_character_over_several_tokens(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-03: it comes whole; every token has its log-probability and its own bytes."""
    engine.default = Script(pieces=(b"\xf0\x9f", b"\x98", b"\x80", b" ok"))
    events = gateway.stream(tenant.key, "chat/completions", {**ASK, "logprobs": True})
    assert [text for text in contents(events) if text] == ["😀", " ok"]
    entries = [e for event in events for e in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [entry["bytes"] for entry in entries] == [[240, 159], [152], [128], [32, 111, 107]]
    whole = gateway.post(tenant.key, "chat/completions", {**ASK, "logprobs": True}).json()["choices"][0]
    assert whole["message"]["content"] == "😀 ok"
    assert whole["logprobs"]["content"] == entries


def test_a_character_cut_off_by_the_limit_is_not_shown_broken(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    """API-03"""
    engine.default = Script(pieces=(b"Hello", b"\xf0\x9f", b"\x98", b"\x80"))
    body = {**ASK, "max_tokens": 3}
    assert "".join(contents(gateway.stream(tenant.key, "chat/completions", body))) == "Hello"
    choice = gateway.post(tenant.key, "chat/completions", body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "length")


def test_log_probabilities_are_json(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-08: minus infinity has a number."""
    top = ((b"Hello", -0.5), (b" ok", float("-inf")), (b"\xf0\x9f", float("nan")))
    engine.default = Script(pieces=(b"Hello",), top=top, logprob=float("-inf"))
    body = {**ASK, "logprobs": True, "top_logprobs": 3}
    answer = strict_json(gateway.post(tenant.key, "chat/completions", body).content)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["logprob"] == -9999.0
    assert [alternative["logprob"] for alternative in entry["top_logprobs"]] == [-0.5, -9999.0, -9999.0]
    gateway.stream(tenant.key, "chat/completions", body)


@pytest.mark.parametrize("include", [True, False, None])
def test_usage_in_a_stream(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine, include: bool | None) -> None:
    """API-17: body, stream, billing row and the engine's own count are one."""
    body = {**ASK, "n": 2}
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    whole = gateway.post(tenant.key, "chat/completions", body).json()["usage"]
    events = gateway.stream(tenant.key, "chat/completions", {**body, **options})
    if include:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == whole
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert not any("usage" in event for event in events)
    rows = tenant.wait_for_usage(2)
    assert {(row.prompt_tokens, row.completion_tokens) for row in rows} == {(21, 4)}
    assert set(engine.produced.values()) == {4}
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (21, 4)


def test_choices_are_told_apart(gateway: Served, tenant: TenantOfTest) -> None:
    """API-07, as far as the gateway decides it."""
    events = gateway.stream(tenant.key, "chat/completions", {**ASK, "n": 3})
    assert ["".join(contents(events, choice)) for choice in range(3)] == ["Hello ok"] * 3
    whole = gateway.post(tenant.key, "chat/completions", {**ASK, "n": 3}).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]


def test_a_template_that_refuses_is_the_clients_error(gateway: Served, tenant: TenantOfTest) -> None:
    """API-15"""
    answer = gateway.post(tenant.key, "chat/completions", {**ASK, "messages": [{"role": "user", "content": "raise"}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "no such thing" in answer.json()["error"]["message"]


def test_another_tenants_adapter_does_not_exist(gateway: Served, database: Database) -> None:
    """AUTH-06: byte for byte the same answer, headers included, on every surface that takes a model."""
    owner, stranger = database.tenant(), database.tenant()
    name, free = f"a{uuid.uuid4().hex[:8]}", f"a{uuid.uuid4().hex[:8]}"
    owner.adapter(name)

    def told(key: str, path: str, model: str) -> tuple[int, bytes, dict[str, str]]:
        if path == "models/":
            answer = gateway.get(key, path + model)
        else:
            prompt = {"messages": ASK["messages"]} if path.startswith("chat") else {"prompt": "x"}
            answer = gateway.post(key, path, {"model": model, **prompt})
        return answer.status_code, answer.content, {k: v for k, v in answer.headers.items() if k != "date"}

    for path in ("chat/completions", "completions", "models/"):
        for suffix in ("", "@1"):
            taken = told(stranger.key, path, f"toy:{name}{suffix}")
            missing = told(stranger.key, path, f"toy:{free}{suffix}")
            assert taken[0] == 404
            assert (taken[0], taken[1].replace(name.encode(), free.encode()), taken[2]) == missing
    assert name not in gateway.get(stranger.key, "models").text
    assert gateway.get(owner.key, f"models/toy:{name}").json()["id"] == f"toy:{name}"


def test_the_models_list(gateway: Served, tenant: TenantOfTest) -> None:
    tenant.adapter("pirate")
    models = gateway.client(tenant.key).models
    assert [model.id for model in models.list()] == ["toy", "toy:pirate"]
    assert models.retrieve("toy:pirate").object == "model"
    with pytest.raises(openai.NotFoundError):
        models.retrieve("toy:none")


@pytest.mark.parametrize(
    ("max_tokens", "status"), [(CONTEXT - 21, 200), (CONTEXT - 20, 400), (CONTEXT, 400), (2**31, 400)]
)
def test_prompt_and_answer_must_fit(gateway: Served, tenant: TenantOfTest, max_tokens: int, status: int) -> None:
    """API-06"""
    answer = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": max_tokens})
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_the_default_answer_takes_what_the_context_leaves(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    gateway.post(tenant.key, "chat/completions", ASK)
    assert engine.submits[0].sampling.max_tokens == CONTEXT - 21


def test_an_engine_with_less_room_bounds_the_context(
    gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine
) -> None:
    engine.max_model_len = 30
    engine.restart()
    engine.wait_for(lambda: bool(engine.peers))
    gateway.post(tenant.key, "chat/completions", ASK)  # by its end the new status has come
    assert gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 10}).status_code == 400
    assert gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 9}).status_code == 200


def test_the_engines_end_reasons(gateway: Served, tenant: TenantOfTest, engine: ScriptedEngine) -> None:
    """API-05: one token is `length`, unless it is the end token."""
    engine.scripts = [Script(pieces=(b"Hello",)), Script(pieces=(b"",), finish=FinishReason.STOP)]
    body = {**ASK, "max_tokens": 1}
    assert gateway.post(tenant.key, "chat/completions", body).json()["choices"][0]["finish_reason"] == "length"
    choice = gateway.post(tenant.key, "chat/completions", {**ASK, "max_tokens": 2}).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
