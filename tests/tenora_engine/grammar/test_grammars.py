"""Grammars of live requests: compiled once for all who want them, kept in bounded memory, forgotten with them."""

from __future__ import annotations

import pytest
import xgrammar
from tiny_tokenizer import END

from tenora_engine.errors import Refused
from tenora_engine.grammar.compiler import Compiled
from tenora_engine.grammar.grammars import MAX_SOURCE_BYTES, Grammars
from tenora_engine.grammar.vocabulary import Vocabulary
from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.wire import FailCode, Grammar, GrammarKind, Sampling


class ByHand:
    """A compiler that has done what it is told to have done."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.started: list[Grammar] = []
        self.cancelled: list[Grammar] = []
        self._done: list[Compiled] = []
        compiler = xgrammar.GrammarCompiler(vocabulary.info, max_threads=1, cache_enabled=False)
        self._compiled = compiler.compile_grammar('root ::= "yes"')

    def start(self, grammar: Grammar, tenant: str) -> None:
        self.started.append(grammar)

    def cancel(self, grammar: Grammar) -> None:
        self.cancelled.append(grammar)

    def poll(self) -> list[Compiled]:
        done, self._done = self._done, []
        return done

    def end(self, grammar: Grammar, num_bytes: int = 10, error: str | None = None) -> None:
        self._done.append(Compiled(grammar, error or self._compiled, num_bytes))


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> ByHand:
    return ByHand(vocabulary)


@pytest.fixture
def grammars(vocabulary: Vocabulary, compiler: ByHand) -> Grammars:
    return Grammars(vocabulary, compiler, cache_bytes=35)


def request(num_choices: int = 1) -> Request:
    made = Request(RequestKey(b"", "r"), "t", [3], Sampling(n=num_choices), (), b"", frozenset({END}), 16)
    made.sequences = [Sequence(made, choice, [3]) for choice in range(num_choices)]
    return made


def of(name: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, name)


def is_kept(grammars: Grammars, name: str) -> bool:
    asking = request()
    grammars.want(asking, of(name))
    if not asking.ready:
        grammars.forget(asking)
    return asking.ready


def test_one_compilation_for_all_who_want_it(grammars: Grammars, compiler: ByHand):
    """Each choice of each has a place of its own in it; nobody runs before."""
    waiting = [request(), request(2)]
    for asking in waiting:
        grammars.want(asking, of("a"))
        assert not asking.ready
    assert compiler.started == [of("a")]
    compiler.end(of("a"))
    assert grammars.collect() == []
    assert all(asking.ready for asking in waiting)
    constraints = [sequence.constraint for asking in waiting for sequence in asking.sequences]
    assert len({id(constraint) for constraint in constraints if constraint is not None}) == 3
    assert is_kept(grammars, "a")


def test_the_least_recently_used_are_given_up(grammars: Grammars, compiler: ByHand):
    """STR-03: ten thousand different schemas in a row take no more memory than the cache has."""
    for name in "abc":
        compiler.end(of(name))
        grammars.collect()
    assert is_kept(grammars, "a")
    compiler.end(of("d"))
    grammars.collect()
    assert [is_kept(grammars, name) for name in "abcd"] == [True, False, True, True]
    for number in range(10_000):
        compiler.end(of(str(number)))
        grammars.collect()
        assert grammars.num_bytes <= 35
    assert len(grammars._kept) == 3


def test_what_is_larger_than_the_cache_is_served_and_not_kept(grammars: Grammars, compiler: ByHand):
    asking = request()
    grammars.want(asking, of("huge"))
    compiler.end(of("huge"), num_bytes=1_000)
    assert grammars.collect() == []
    assert asking.sequences[0].constraint is not None
    assert grammars.num_bytes == 0
    assert not is_kept(grammars, "huge")


def test_a_refusal_is_kept_too(grammars: Grammars, compiler: ByHand):
    """STR-03: who asks again is told at once."""
    asking = request()
    grammars.want(asking, of("bad"))
    compiler.end(of("bad"), error="it is bad")
    (failure,) = grammars.collect()
    assert failure.request is asking
    assert failure.refusal.code is FailCode.INVALID
    with pytest.raises(Refused, match="it is bad"):
        grammars.want(request(), of("bad"))
    assert compiler.started == [of("bad")]


def test_what_nobody_waits_for_any_more_is_cancelled(grammars: Grammars, compiler: ByHand):
    one, other = request(), request()
    grammars.want(one, of("a"))
    grammars.want(other, of("a"))
    grammars.forget(one)
    assert compiler.cancelled == []
    grammars.forget(other)
    assert compiler.cancelled == [of("a")]


def test_one_that_is_compiled_twice_is_counted_once(grammars: Grammars, compiler: ByHand):
    """Cancelled when its turn had come already, and asked for again meanwhile: both ends come."""
    asking = request()
    grammars.want(asking, of("a"))
    grammars.forget(asking)
    again = request()
    grammars.want(again, of("a"))
    for _ in range(5):
        compiler.end(of("a"))
        grammars.collect()
    assert again.ready
    assert grammars.num_bytes == 10
    assert is_kept(grammars, "a")


def test_a_source_has_a_largest_size(grammars: Grammars, compiler: ByHand):
    """STR-03: in bytes, before anything is done with it."""
    with pytest.raises(Refused, match="longer than"):
        grammars.want(request(), of("é" * (MAX_SOURCE_BYTES // 2 + 1)))
    assert compiler.started == []
