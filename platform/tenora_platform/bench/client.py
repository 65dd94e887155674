"""One request to an OpenAI-compatible server, streamed, and written down as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httptools
import msgspec

from tenora_platform.bench.events import EventReader, EventTooLong
from tenora_platform.bench.http import Address, Connection, Pool
from tenora_platform.bench.record import Failure, Record, Usage
from tenora_platform.bench.targets import Api
from tenora_platform.bench.workload import Call

_MAX_MESSAGE: Final = 200  # characters kept of what a server says about a failure


@dataclass(frozen=True)
class ClientOptions:
    api: Api = Api.COMPLETIONS
    exact_output: bool = True  # send ignore_eos and min_tokens, which vLLM, SGLang, llama.cpp and Tenora know
    temperature: float = 0.0
    timeout_s: float = 300.0  # of one request, from its sending to its end


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class AnswerFailed(Exception):
    """The server said, within a stream, that it failed."""


_chunk = msgspec.json.Decoder(_Chunk)


class OpenAiClient:
    """Use `send` from one event loop; `close` when done."""

    def __init__(self, api_url: str, options: ClientOptions, clock: Callable[[], float]) -> None:
        """`api_url` ends in /v1. Raises ValueError."""
        self._options = options
        address = Address.of(api_url)
        self._pool = Pool(address, clock)
        self._path = address.path + ("/chat/completions" if options.api is Api.CHAT else "/completions")
        self._host = address.authority

    async def send(self, call: Call, record: Record) -> None:
        """Ask, and fill in the record. Raises nothing but CancelledError: what goes wrong is the record's failure."""
        answer = _Answer(record)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                status = await self._exchange(call, answer)
            record.failure = answer.failure(status)
        except TimeoutError:
            record.failure = Failure("timeout", f"no end within {self._options.timeout_s:g} s")
        except AnswerFailed as error:
            record.failure = Failure("error_event", str(error))
        except OSError as error:
            record.failure = Failure("connection", error.strerror or str(error))
        except (httptools.HttpParserError, msgspec.DecodeError, EventTooLong) as error:
            record.failure = Failure("protocol", str(error)[:_MAX_MESSAGE])
        if record.failure is not None and call.key:
            message = record.failure.message.replace(call.key, "[key]")
            record.failure = Failure(record.failure.kind, message)

    def close(self) -> None:
        self._pool.close()

    async def _exchange(self, call: Call, answer: _Answer) -> int:
        message = self._message(call)
        while True:
            connection = await self._pool.take()
            try:
                return await connection.post(message, partial(answer.take, connection))
            except ConnectionError:
                if not connection.was_stale:
                    raise
            finally:
                self._pool.give_back(connection)

    def _message(self, call: Call) -> bytes:
        options = self._options
        body: dict[str, Any] = {
            "model": call.model,
            "max_tokens": call.output_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.exact_output:
            body |= {"ignore_eos": True, "min_tokens": call.output_tokens}
        if options.api is Api.CHAT:
            body["messages"] = [{"role": "user", "content": call.prompt}]
        else:
            body["prompt"] = call.prompt
        content = msgspec.json.encode(body)
        authorization = f"Authorization: Bearer {call.key}\r\n" if call.key else ""
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}\r\n{authorization}"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


class _Answer:
    """An answer as far as it came."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._events = EventReader()
        self._refusal = b""
        self._done = False  # [DONE], or a finish reason: either is a proper end

    def take(self, connection: Connection, body: bytes, now: float) -> None:
        """Raises AnswerFailed, EventTooLong, msgspec.DecodeError."""
        if connection.status != 200:
            self._refusal += body[: 4096 - len(self._refusal)]
            return
        for data in self._events.feed(body):
            if data == b"[DONE]":
                self._done = True
            else:
                self._take_chunk(_chunk.decode(data), now)

    def failure(self, status: int) -> Failure | None:
        """Why this is no whole answer, now that it has ended; None when it is one."""
        if status != 200:
            return Failure(f"http_{status}", _message_of(self._refusal))
        if not self._done:
            return Failure("truncated", "the stream ended without a finish reason or [DONE]")
        if self._record.ended is None:
            return Failure("empty", "the stream held no choice")
        return None

    def _take_chunk(self, chunk: _Chunk, now: float) -> None:
        record = self._record
        if chunk.error is not None:
            raise AnswerFailed(_words(chunk.error))
        for choice in chunk.choices:
            text = _has_text(choice)
            if text:
                record.chunks.append(now)
            if text or choice.finish_reason is not None:
                record.ended = now
            self._done = self._done or choice.finish_reason is not None
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached = (details.cached_tokens or 0) if details is not None else 0
            record.usage = Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached)


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta is not None and (delta.content or delta.reasoning_content or delta.tool_calls)))


def _message_of(body: bytes) -> str:
    try:
        return _words(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return _words(body.decode(errors="replace"))


def _words(value: Any) -> str:
    """The message of an OpenAI-shaped error, or the beginning of whatever else it is."""
    while isinstance(value, dict):
        value = value.get("error") or value.get("message") or value.get("detail") or str(value)
    return str(value)[:_MAX_MESSAGE]
