"""The compiler with its process, asked for one grammar at a time."""

from __future__ import annotations

import threading

import xgrammar

from tenora_engine.grammar.compiler import Compiled, GrammarCompiler
from tenora_engine.grammar.constraint import Constraint
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.wire import Grammar, GrammarKind


class CompilerUnderTest:
    def __init__(self, vocabulary: Vocabulary, seconds: int = 2, memory_mb: int = 512) -> None:
        self._woken = threading.Event()
        self._vocabulary = vocabulary
        self.compiler = GrammarCompiler(vocabulary, seconds, memory_mb << 20, self._woken.set)

    def compile(self, kind: GrammarKind, source: str = "", tenant: str = "tenant") -> Compiled:
        self.compiler.start(Grammar(kind, source), tenant)
        return self.wait()

    def wait(self) -> Compiled:
        """The next end."""
        while True:
            self._woken.clear()
            for compiled in self.compiler.poll():
                return compiled
            assert self._woken.wait(60), "the compiler gave no answer"

    def refusal(self, kind: GrammarKind, source: str) -> str:
        """Why this cannot be served; empty when it can."""
        result = self.compile(kind, source).result
        return result if isinstance(result, str) else ""

    def constraint(self, kind: GrammarKind, source: str = "") -> Constraint:
        result = self.compile(kind, source).result
        assert isinstance(result, xgrammar.CompiledGrammar), result
        return Constraint(result, self._vocabulary.ends, self._vocabulary.tokens)

    def close(self) -> None:
        self.compiler.close()
