"""One compiler for the folder: its process takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compiler_under_test import CompilerUnderTest
from tiny_tokenizer import END, TOKENS

from tenora_engine.grammar.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, (END,))


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Iterator[CompilerUnderTest]:
    compiler = CompilerUnderTest(vocabulary)
    yield compiler
    compiler.close()
