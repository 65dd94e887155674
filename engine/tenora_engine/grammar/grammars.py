"""Grammars of live requests: absent, compiling, at hand. As `lora.residency` is for adapters."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from tenora_engine.errors import Refused
from tenora_engine.grammar.compiler import Compiled
from tenora_engine.grammar.constraint import Constraint
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.request import Request
from tenora_engine.wire import GRAMMAR_REFUSED, FailCode, Grammar

MAX_SOURCE_BYTES: Final = 256 << 10


class Compiler(Protocol):
    """`compiler.GrammarCompiler`."""

    def start(self, grammar: Grammar, tenant: str) -> None: ...

    def cancel(self, grammar: Grammar) -> None: ...

    def poll(self) -> list[Compiled]: ...


@dataclass(frozen=True, slots=True)
class GrammarFailure:
    request: Request
    refusal: Refused


class Grammars:
    """Compiled ones are kept, the least recently used given up first, and so is what was wrong with the others."""

    def __init__(self, vocabulary: Vocabulary, compiler: Compiler, cache_bytes: int) -> None:
        """Without tokens no grammar is served."""
        self._vocabulary = vocabulary
        self._compiler = compiler
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[Grammar, Compiled] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._waiting: dict[Grammar, list[Request]] = {}

    @property
    def num_bytes(self) -> int:
        """Held in the cache, by the size of its serialised grammars."""
        return self._num_bytes

    def want(self, request: Request, grammar: Grammar | None) -> None:
        """A request was accepted: constrain it, now or, while it is not `ready`, once `collect` has its grammar.

        Raises Refused.
        """
        if grammar is None:
            return
        if not self._vocabulary.tokens:
            raise _refused("this engine's base has no tokenizer that grammars can use")
        if len(grammar.source.encode()) > MAX_SOURCE_BYTES:
            raise _refused(f"it is longer than {MAX_SOURCE_BYTES} bytes")
        kept = self._kept.get(grammar)
        if kept is not None:
            self._kept.move_to_end(grammar)
            self._constrain(request, kept)
            return
        request.ready = False
        if grammar not in self._waiting:
            self._compiler.start(grammar, request.tenant)
        self._waiting.setdefault(grammar, []).append(request)

    def forget(self, request: Request) -> None:
        """It has ended. What only it waited for need not be compiled."""
        if request.ready:
            return
        for grammar, requests in list(self._waiting.items()):
            if request in requests:
                requests.remove(request)
                if not requests:
                    del self._waiting[grammar]
                    self._compiler.cancel(grammar)

    def collect(self) -> list[GrammarFailure]:
        """Take in what has been compiled; the failures, for their requests to end."""
        failures = []
        for compiled in self._compiler.poll():
            self._keep(compiled)
            for request in self._waiting.pop(compiled.grammar, ()):
                request.ready = True
                try:
                    self._constrain(request, compiled)
                except Refused as refusal:
                    failures.append(GrammarFailure(request, refusal))
        return failures

    def _constrain(self, request: Request, compiled: Compiled) -> None:
        """Each choice goes its own way. Raises Refused."""
        if isinstance(compiled.result, str):
            raise _refused(compiled.result)
        ends = {*self._vocabulary.ends, *request.stop_token_ids}
        for sequence in request.sequences:
            sequence.constraint = Constraint(compiled.result, ends, self._vocabulary.tokens)

    def _keep(self, compiled: Compiled) -> None:
        before = self._kept.pop(compiled.grammar, None)  # cancelled when its turn had come, and asked for again
        self._kept[compiled.grammar] = compiled
        self._num_bytes += compiled.num_bytes - (before.num_bytes if before is not None else 0)
        while self._num_bytes > self._cache_bytes:
            _, given_up = self._kept.popitem(last=False)
            self._num_bytes -= given_up.num_bytes


def _refused(reason: str) -> Refused:
    return Refused(FailCode.INVALID, f"{GRAMMAR_REFUSED}{reason}.")
