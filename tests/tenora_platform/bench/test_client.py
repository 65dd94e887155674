"""What the client makes of every way in which a server can answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from scripted_server import CHUNKED, DONE, End, ScriptedServer, Step, chunk, delta, event, refusal, usage, whole

from tenora_platform.bench.client import ClientOptions, OpenAiClient
from tenora_platform.bench.http import Address
from tenora_platform.bench.record import Record, Usage
from tenora_platform.bench.targets import Api
from tenora_platform.bench.workload import Call

CALL = Call("acme", "base:bot", "Hello", 3, key="tnr_secret")


async def ask(server: ScriptedServer, steps: Sequence[Step], options: ClientOptions | None = None) -> Record:
    server.script = lambda _: steps
    client = OpenAiClient(server.url, options or ClientOptions(timeout_s=5.0), time.monotonic)
    now = time.monotonic()
    record = Record(CALL.tenant, CALL.model, intended=now, sent=now)
    await client.send(CALL, record)
    client.close()
    return record


def kind(record: Record) -> str | None:
    return record.failure.kind if record.failure is not None else None


async def test_a_whole_answer_is_written_down(server: ScriptedServer) -> None:
    record = await ask(server, whole([" a", " b", " c"], prompt=7, pause_s=0.01))
    assert record.completed
    assert record.usage == Usage(prompt=7, output=3)
    assert len(record.chunks) == 3
    assert record.sent < record.chunks[0] < record.chunks[1] < record.chunks[2] == record.ended


async def test_what_is_asked_makes_lengths_exact_and_carries_the_key(server: ScriptedServer) -> None:
    await ask(server, whole(["a"]))
    (asked,) = server.asked
    assert asked.path == "/v1/completions"
    assert asked.headers["authorization"] == "Bearer tnr_secret"
    assert asked.body["stream_options"] == {"include_usage": True}
    assert (asked.body["max_tokens"], asked.body["min_tokens"], asked.body["ignore_eos"]) == (3, 3, True)
    assert (asked.body["model"], asked.body["prompt"]) == ("base:bot", "Hello")


async def test_openai_itself_is_not_sent_what_it_refuses(server: ScriptedServer) -> None:
    await ask(server, whole(["a"]), ClientOptions(exact_output=False))
    assert not {"min_tokens", "ignore_eos"} & server.asked[0].body.keys()


async def test_a_chat_begins_with_its_first_text_not_with_its_role(server: ScriptedServer) -> None:
    steps = [CHUNKED, chunk(delta(role="assistant", content="")), 0.05, chunk(delta(reasoning_content="hm"))]
    steps += [0.01, chunk(delta(content="a")), chunk(delta("stop")), chunk(DONE), chunk(b"")]
    record = await ask(server, steps, ClientOptions(api=Api.CHAT))
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].body["messages"] == [{"role": "user", "content": "Hello"}]
    assert record.completed
    assert len(record.chunks) == 2
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.05


async def test_pieces_of_one_segment_arrived_together(server: ScriptedServer) -> None:
    """Several tokens in one chunk, or chunks in one segment, are not made to look as if they were spread."""
    together = chunk(event(" two tokens") + event(" and one"))
    record = await ask(server, [CHUNKED, together, 0.02, chunk(event("x", "stop")), chunk(usage(4, 4)), chunk(b"")])
    assert record.gaps_s[0] == 0.0
    assert record.output_tokens == 4


async def test_frames_may_be_cut_anywhere(server: ScriptedServer) -> None:
    answer = b"".join(step for step in whole([" a", " b"]) if isinstance(step, bytes))
    record = await ask(server, [answer[at : at + 5] for at in range(0, len(answer), 5)])
    assert record.completed
    assert record.usage == Usage(prompt=4, output=2)


async def test_comments_keep_a_stream_alive_and_are_no_tokens(server: ScriptedServer) -> None:
    record = await ask(server, [CHUNKED, chunk(b": ping\n\n"), chunk(event("a", "stop")), chunk(DONE), chunk(b"")])
    assert record.completed
    assert len(record.chunks) == 1


async def test_without_usage_chunks_are_counted(server: ScriptedServer) -> None:
    record = await ask(server, [CHUNKED, chunk(event("a")), chunk(event("b", "stop")), chunk(DONE), chunk(b"")])
    assert record.usage is None
    assert record.output_tokens == 2


async def test_an_answer_without_text_ends_with_its_finish_reason(server: ScriptedServer) -> None:
    record = await ask(server, [CHUNKED, chunk(event("", "stop")), chunk(usage(4, 1)), chunk(DONE), chunk(b"")])
    assert record.completed
    assert record.chunks == []
    assert record.ttft_s == record.e2e_s


async def test_a_body_may_end_with_its_connection(server: ScriptedServer) -> None:
    steps = [b"HTTP/1.1 200 OK\r\n\r\n", event("a", "stop"), DONE, End.CLOSE]
    assert (await ask(server, steps)).completed


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([CHUNKED, chunk(event("a")), chunk(b"")], "truncated"),
        ([CHUNKED, chunk(event("a")), End.CLOSE], "connection"),
        ([CHUNKED, chunk(event("a")), 0.02, End.RESET], "connection"),
        ([End.CLOSE], "connection"),
        ([CHUNKED, chunk(event("a")), chunk(b'data: {"error": {"message": "no more"}}\n\n'), 9.0], "error_event"),
        ([CHUNKED, chunk(b"data: {oops\n\n"), 9.0], "protocol"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n", 9.0], "protocol"),
        ([CHUNKED, chunk(DONE), chunk(b"")], "empty"),
    ],
)
async def test_a_broken_answer_is_a_failure_of_its_kind(
    server: ScriptedServer, steps: list[Step], expected: str
) -> None:
    assert kind(await ask(server, steps)) == expected


async def test_a_missing_done_is_forgiven_after_a_finish_reason(server: ScriptedServer) -> None:
    assert (await ask(server, [CHUNKED, chunk(event("a", "stop")), chunk(b"")])).completed


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Internal Server Error"])
async def test_a_refusal_is_counted_by_its_status_and_quoted(server: ScriptedServer, status: str) -> None:
    record = await ask(server, [refusal(status, {"error": {"message": "not now"}})])
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message) == (f"http_{status[:3]}", "not now")
    assert record.ended is None


async def test_a_key_that_a_server_repeats_is_not_kept(server: ScriptedServer) -> None:
    record = await ask(server, [refusal("401 Unauthorized", {"error": {"message": "Wrong key: tnr_secret"}})])
    assert record.failure is not None
    assert record.failure.message == "Wrong key: [key]"


async def test_silence_is_a_timeout(server: ScriptedServer) -> None:
    record = await ask(server, [CHUNKED, chunk(event("a")), 9.0], ClientOptions(timeout_s=0.1))
    assert kind(record) == "timeout"


async def test_an_answer_that_is_given_up_is_not_left_running_at_the_server(server: ScriptedServer) -> None:
    await ask(server, [CHUNKED, *[chunk(event("a")), 0.02] * 500], ClientOptions(timeout_s=0.1))
    async with asyncio.timeout(5):
        await server.left.wait()


async def test_nobody_there_is_a_failure_not_a_crash() -> None:
    assert kind(await ask(ScriptedServer(url="http://127.0.0.1:1/v1"), [])) == "connection"


async def test_a_connection_is_used_again_after_a_proper_end_only(server: ScriptedServer) -> None:
    client = OpenAiClient(server.url, ClientOptions(timeout_s=5.0), time.monotonic)
    broken: list[Step] = [CHUNKED, chunk(b"data: {oops\n\n"), 9.0]
    for steps, connections in ((whole(["a"]), 1), (whole(["a"]), 1), (broken, 1), (whole(["a"]), 2)):
        server.script = lambda _, steps=steps: steps
        await client.send(CALL, Record("acme", "base:bot", 0.0, 0.0))
        assert server.num_connections == connections
    client.close()


async def test_a_connection_that_its_server_was_closing_is_no_failure(server: ScriptedServer) -> None:
    """llama.cpp closes a connection that it has said to keep; on a new one it is the server's failure."""
    client = OpenAiClient(server.url, ClientOptions(timeout_s=5.0), time.monotonic)
    scripts: list[list[Step]] = [whole(["a"]), [End.CLOSE], whole(["b"]), [End.CLOSE], [End.CLOSE]]
    server.script = lambda _: scripts[len(server.asked) - 1]
    records = [Record("acme", "base:bot", 0.0, 0.0) for _ in range(3)]
    for record in records:
        await client.send(CALL, record)
    assert [kind(record) for record in records] == [None, None, "connection"]
    assert (len(server.asked), server.num_connections) == (5, 3)
    client.close()


async def test_a_connection_that_was_idle_for_long_is_not_trusted(server: ScriptedServer) -> None:
    server.script = lambda _: whole(["a"])
    now = 0.0
    client = OpenAiClient(server.url, ClientOptions(), lambda: now)
    await client.send(CALL, Record("acme", "base:bot", 0.0, 0.0))
    now = 3.0
    await client.send(CALL, Record("acme", "base:bot", 0.0, 0.0))
    assert server.num_connections == 2
    client.close()


@pytest.mark.parametrize("url", ["ftp://a/v1", "127.0.0.1:8080/v1", "http:///v1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no http or https URL"):
        OpenAiClient(url, ClientOptions(), time.monotonic)


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://127.0.0.1:8080/v1/", "127.0.0.1", 8080, "127.0.0.1:8080"),
        ("http://[::1]:8080/v1", "::1", 8080, "[::1]:8080"),
        ("https://user@api.example/v1", "api.example", 443, "api.example"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: str, port: int, authority: str) -> None:
    address = Address.of(url)
    assert (address.host, address.port, address.authority, address.path) == (host, port, authority, "/v1")
    assert (address.tls is not None) == url.startswith("https")
