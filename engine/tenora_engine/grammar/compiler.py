"""Has grammars compiled off the step path, one at a time, by a process that may be lost at any moment."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import Final

import msgspec
import xgrammar

from tenora_engine.grammar.queue import FairQueue
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.grammar.worker import Reply, Setup, read_frame, write_frame
from tenora_engine.wire import Grammar

log = logging.getLogger(__name__)

_REPLY_BYTES: Final = 64 << 20
_COMMAND: Final = (sys.executable, "-m", "tenora_engine.grammar.worker")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One grammar's end: compiled, or why it cannot be. `num_bytes`: what keeping this costs."""

    grammar: Grammar
    result: xgrammar.CompiledGrammar | str
    num_bytes: int


class GrammarCompiler:
    """`poll` gives what is done; `wake` is called at each end. The process is started when the first grammar comes."""

    def __init__(
        self, vocabulary: Vocabulary, seconds: int, memory_bytes: int, wake: Callable[[], None] = lambda: None
    ) -> None:
        """Limits for each grammar: seconds of processor time, and bytes of memory."""
        self._vocabulary = vocabulary
        self._setup = Setup(vocabulary.tokens, vocabulary.ends, seconds, memory_bytes, _REPLY_BYTES)
        self._wake = wake
        self._waiting: FairQueue[Grammar] = FairQueue()
        self._changed = Condition()
        self._closed = False
        self._done: SimpleQueue[Compiled] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: Thread | None = None

    def start(self, grammar: Grammar, tenant: str) -> None:
        """The end comes out of `poll`, once, unless it is cancelled before its turn."""
        with self._changed:
            self._waiting.push(tenant, grammar)
            self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="grammar-compile", daemon=True)
                self._thread.start()

    def cancel(self, grammar: Grammar) -> None:
        """Nobody waits for it any more: nothing comes of it unless its turn has come already."""
        with self._changed:
            self._waiting.remove(grammar)

    def poll(self) -> list[Compiled]:
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except Empty:
                return done

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            if self._process is not None:
                _kill(self._process)
        if self._thread is not None:
            self._thread.join()
        if self._process is not None:
            _reap(self._process)

    # -- on the compiler's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while (grammar := self._next()) is not None:
            self._done.put(self._compile(grammar))
            self._wake()

    def _next(self) -> Grammar | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) > 0)
            return None if self._closed else self._waiting.pop()

    def _compile(self, grammar: Grammar) -> Compiled:
        reply = self._ask(grammar)
        if reply is None:
            return Compiled(grammar, "the compiler was lost over it", 0)
        if reply.compiled is None:
            return Compiled(grammar, str(reply.error), len(grammar.source))
        compiled = xgrammar.CompiledGrammar.deserialize_json(reply.compiled, self._vocabulary.info)
        return Compiled(grammar, compiled, len(grammar.source) + len(reply.compiled))

    def _ask(self, grammar: Grammar) -> Reply | None:
        """None when the process was lost; the next grammar starts another."""
        process = self._started()
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        frame: bytes | None = None
        with suppress(OSError):
            write_frame(process.stdin, msgspec.msgpack.encode(grammar))
            frame = read_frame(process.stdout)
        if frame is not None:
            return msgspec.msgpack.decode(frame, type=Reply)
        log.error("the process that compiles grammars was lost")
        _reap(process)
        self._process = None
        return None

    def _started(self) -> subprocess.Popen[bytes] | None:
        """The process; None when it cannot be started, or need not be any more."""
        with self._changed:
            if self._closed:
                return None
            if self._process is not None:
                return self._process
            self._process = process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        assert process.stdin is not None
        with suppress(OSError):  # told by the reply that does not come
            write_frame(process.stdin, msgspec.msgpack.encode(self._setup))
        return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it is compiling, which is a child of it in the same process group."""
    if process.returncode is None:  # else its number may be another's by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(OSError):  # of what was still to be written
            stream.close()
    process.wait()
