"""Compilation that nobody else notices: limits of time, memory and size, and a process that may be lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
import xgrammar
from compiler_under_test import CompilerUnderTest

from tenora_engine.grammar import compiler as compiler_module
from tenora_engine.grammar.compiler import GrammarCompiler
from tenora_engine.grammar.queue import FairQueue
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.wire import Grammar, GrammarKind

COSTLY = "a?" * 4000 + "b"  # minutes


def is_served(compiler: CompilerUnderTest) -> bool:
    return isinstance(compiler.compile(GrammarKind.CHOICE, '["yes"]').result, xgrammar.CompiledGrammar)


def test_each_kind_compiles(compiler: CompilerUnderTest):
    for kind, source in (
        (GrammarKind.JSON_OBJECT, ""),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer"}'),
        (GrammarKind.REGEX, "[a-c]+"),
        (GrammarKind.CHOICE, '["yes", "no"]'),
        (GrammarKind.EBNF, 'root ::= "a" | "b" root'),
    ):
        compiled = compiler.compile(kind, source)
        assert isinstance(compiled.result, xgrammar.CompiledGrammar), compiled.result
        assert compiled.num_bytes > 0


def test_what_takes_too_long_is_refused(compiler: CompilerUnderTest):
    """STR-03: with its reason, and the next grammar is compiled by the same process."""
    assert is_served(compiler)
    process = compiler.compiler._process
    assert "more than 2 s" in compiler.refusal(GrammarKind.REGEX, COSTLY)
    assert is_served(compiler)
    assert compiler.compiler._process is process


def test_what_takes_too_much_memory_or_is_too_large_is_refused(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch):
    """STR-03: as above."""
    monkeypatch.setattr(compiler_module, "_REPLY_BYTES", 200_000)
    compiler = CompilerUnderTest(vocabulary, seconds=30, memory_mb=32)
    try:
        assert is_served(compiler)
        process = compiler.compiler._process
        assert "too much memory" in compiler.refusal(GrammarKind.REGEX, COSTLY)
        words = [f"word{number}" for number in range(5_000)]
        assert "too large" in compiler.refusal(GrammarKind.JSON_SCHEMA, json.dumps({"enum": words}))
        assert is_served(compiler)
        assert compiler.compiler._process is process
    finally:
        compiler.close()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.REGEX, "(a+)+$"),
        (GrammarKind.REGEX, "(.*)*="),
        (GrammarKind.REGEX, "(?:a{1000}){1000}"),
        (GrammarKind.JSON_SCHEMA, json.dumps({"enum": [f"a{number}" for number in range(10_000)]})),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "maxLength": 100000}'),
        (GrammarKind.JSON_SCHEMA, '{"allOf": [' * 30 + '{"type": "string"}' + "]}" * 30),
        (GrammarKind.JSON_SCHEMA, '{"type": "array", "items": ' * 5_000 + "{}" + "}" * 5_000),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}'),
        (GrammarKind.EBNF, "root ::= root"),
        (GrammarKind.EBNF, "root ::= " + "(" * 100_000),
        (GrammarKind.EBNF, 'root ::= "a'),
        (GrammarKind.EBNF, "\x00"),
        (GrammarKind.REGEX, "(" * 50_000),
        (GrammarKind.REGEX, "[z-a]"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_hostile_grammars_have_an_end(compiler: CompilerUnderTest, kind: GrammarKind, source: str):
    """STR-03, STR-05: served or refused, and the next one is compiled."""
    result = compiler.compile(kind, source).result
    assert isinstance(result, xgrammar.CompiledGrammar) or result
    assert is_served(compiler)


def test_a_lost_process_is_one_refusal(vocabulary: Vocabulary):
    compiler = CompilerUnderTest(vocabulary, seconds=30)
    try:
        assert is_served(compiler)
        process = compiler.compiler._process
        assert process is not None
        compiler.compiler.start(Grammar(GrammarKind.REGEX, COSTLY), "tenant")
        while not _children(process.pid):  # until it is at it
            pass
        os.kill(process.pid, signal.SIGKILL)
        assert compiler.wait().result == "the compiler was lost over it"
        assert is_served(compiler)
        assert compiler.compiler._process is not process
    finally:
        compiler.close()


def test_close_does_not_wait_for_what_is_compiled(vocabulary: Vocabulary):
    """And leaves no process behind."""
    compiler = CompilerUnderTest(vocabulary, seconds=600)
    assert is_served(compiler)
    process = compiler.compiler._process
    assert process is not None
    compiler.compiler.start(Grammar(GrammarKind.REGEX, COSTLY), "tenant")
    while not (children := _children(process.pid)):
        pass
    compiler.close()
    assert process.returncode is not None
    while not all(map(_is_gone, children)):  # killed; the end of one that has much memory takes the system a moment
        pass


def test_nothing_is_compiled_that_nobody_waits_for(vocabulary: Vocabulary):
    compiler = GrammarCompiler(vocabulary, 1, 64 << 20)
    grammar = Grammar(GrammarKind.CHOICE, '["yes"]')
    with compiler._changed:  # so that its thread does not take it
        compiler._waiting.push("tenant", grammar)
        compiler.cancel(grammar)
        assert len(compiler._waiting) == 0
    compiler.close()
    assert compiler.poll() == []


def test_tenants_take_turns():
    """STR-03: ten thousand of one tenant's schemas hold up nobody else's first."""
    queue: FairQueue[int] = FairQueue()
    for number in range(10_000):
        queue.push("a", number)
    queue.push("b", -1)
    queue.push("c", -2)
    queue.remove(-2)
    assert [queue.pop() for _ in range(3)] == [0, -1, 1]
    assert len(queue) == 9_998


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def _is_gone(pid: int) -> bool:
    return (
        not os.path.exists(f"/proc/{pid}")
        or subprocess.run(["grep", "-q", "State:.Z", f"/proc/{pid}/status"], check=False).returncode == 0
    )
