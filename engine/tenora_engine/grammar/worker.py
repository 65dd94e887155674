"""Compiles grammars that nobody trusts: `python -m tenora_engine.grammar.worker` reads jobs and writes replies.

Each job runs in a child of this process, under limits of the kernel on processor time and memory: it can take too long,
too much, or down the child that it runs in, and the next one finds everything as it was. Frames are msgpack after four
bytes of length.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import IO, Final

import msgspec
import torch
import xgrammar

from tenora_engine.grammar.errors import GrammarError
from tenora_engine.grammar.expressions import choice_rules, whole_text
from tenora_engine.grammar.schema import enforceable
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.wire import Grammar, GrammarKind

_ANY_OBJECT: Final = '{"type": "object"}'
_NICENESS: Final = 10  # steps come first


class Setup(msgspec.Struct, frozen=True):
    """The first frame. Limits hold for each job."""

    tokens: tuple[bytes, ...]
    ends: tuple[int, ...]
    seconds: int  # of processor time
    memory_bytes: int  # beside what this process has
    reply_bytes: int


class Reply(msgspec.Struct, frozen=True):
    """One of them: the compiled grammar as xgrammar serialises it, or what is wrong."""

    compiled: str | None = None
    error: str | None = None


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream, wherever in a frame it comes."""
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    body = stream.read(size) if len(head) == 4 else b""
    return body if len(head) == 4 and len(body) == size else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(4, "little") + body)
    stream.flush()


def serve(jobs: IO[bytes], replies: IO[bytes]) -> None:
    """Until there are no more jobs."""
    first = read_frame(jobs)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    info = Vocabulary(setup.tokens, setup.ends).info
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    while (frame := read_frame(jobs)) is not None:
        grammar = msgspec.msgpack.decode(frame, type=Grammar)
        write_frame(replies, msgspec.msgpack.encode(_in_child(compiler, grammar, setup, replies)))


def _in_child(compiler: xgrammar.GrammarCompiler, grammar: Grammar, setup: Setup, replies: IO[bytes]) -> Reply:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        replies.close()  # so that the loss of this process is seen while the child goes on
        with os.fdopen(theirs, "wb") as stream:
            _limit(setup)
            write_frame(stream, msgspec.msgpack.encode(_reply(compiler, grammar, setup.reply_bytes)))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        frame = read_frame(stream)
    _, status = os.waitpid(child, 0)
    if frame is not None:
        return msgspec.msgpack.decode(frame, type=Reply)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return Reply(error=f"it takes more than {setup.seconds} s to compile")
    return Reply(error="the compiler broke down over it")


def _limit(setup: Setup) -> None:
    os.nice(_NICENESS)
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + setup.memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (setup.seconds, setup.seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reply(compiler: xgrammar.GrammarCompiler, grammar: Grammar, reply_bytes: int) -> Reply:
    try:
        compiled = _compiled(compiler, grammar)
        if not _can_begin(compiled):
            return Reply(error="no text follows it")
        text = compiled.serialize_json()
    except GrammarError as error:
        return Reply(error=str(error))
    except MemoryError:
        return Reply(error="it takes too much memory to compile")
    except RuntimeError as error:
        return Reply(error=_told(str(error)))
    return Reply(error="it is too large") if len(text) > reply_bytes else Reply(compiled=text)


def _compiled(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> xgrammar.CompiledGrammar:
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return compiler.compile_json_schema(_ANY_OBJECT, strict_mode=False)
        case GrammarKind.JSON_SCHEMA:
            return compiler.compile_json_schema(enforceable(grammar.source), strict_mode=False)
        case GrammarKind.REGEX:
            return compiler.compile_regex(whole_text(grammar.source))
        case GrammarKind.CHOICE:
            return compiler.compile_grammar(choice_rules(grammar.source))
        case GrammarKind.EBNF:
            return compiler.compile_grammar(grammar.source)


def _can_begin(compiled: xgrammar.CompiledGrammar) -> bool:
    """Whether any token is allowed at the beginning: a grammar may define itself by itself."""
    mask = torch.empty(1, -(-compiled.tokenizer_info.vocab_size // 32), dtype=torch.int32)
    xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
    return bool(mask.any())


def _told(message: str) -> str:
    """The compiler's own words, without where in its source they come from."""
    if "bad_alloc" in message:
        return "it takes too much memory to compile"
    _, separator, told = message.partition(".cc:")
    return (told.partition(": ")[2] if separator else message).strip()[:500]


if __name__ == "__main__":
    # What a library may print must not come between the frames.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    serve(sys.stdin.buffer, replies)
