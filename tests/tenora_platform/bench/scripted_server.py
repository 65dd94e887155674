"""Time that stands still until everybody sleeps, and a server that says exactly what a test wrote."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """Instead of waiting, it moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for ever"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def in_virtual_time(make: Callable[[Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """Run what `make` returns for a clock; its sleeps take no time and are exact."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(make(runner.get_loop().time))


class End(Enum):
    RESET = auto()  # as a process that dies
    CLOSE = auto()


Step = bytes | float | End  # what to send; how long to wait; how to end before the time


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ScriptedServer:
    """Answers each request with the steps that `script` gives for it."""

    script: Callable[[Asked], Sequence[Step]] = lambda _: ()
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client went away in the middle of an answer
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append(Asked(first.split()[1], headers, json.loads(body or b"{}")))
                for step in self.script(self.asked[-1]):
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    elif isinstance(step, float):
                        await asyncio.sleep(step)
                    else:
                        if step is End.RESET:
                            writer.transport.abort()
                        return
        except ConnectionError:
            self.left.set()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, or the test, is through
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedServer]:
        listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        async with listener:
            yield self


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """As chunked transfer encoding frames it; nothing ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str, finish_reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return _event({"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached}}})


def delta(finish_reason: str | None = None, **content: Any) -> bytes:
    """A chunk of a chat."""
    return _event({"choices": [{"index": 0, "delta": content, "finish_reason": finish_reason}]})


def whole(texts: Sequence[str], prompt: int = 4, pause_s: float = 0.0) -> list[Step]:
    """A proper answer, a chunk per text, with a pause before each."""
    chunks = [chunk(event(text, "length" if at == len(texts) - 1 else None)) for at, text in enumerate(texts)]
    paused = [step for piece in chunks for step in (pause_s, piece)]
    return [CHUNKED, *paused, chunk(usage(prompt, len(texts))), chunk(DONE), chunk(b"")]


def refusal(status: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
