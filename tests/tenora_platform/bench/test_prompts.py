from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from tenora_platform.bench.prompts import (
    IdPrompts,
    PromptError,
    SharedBy,
    SharedPrefix,
    WordPrompts,
    ordinary_ids,
    token_counter,
)

NOTHING_SHARED = SharedPrefix()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A token per word, with a token that begins every text."""
    vocabulary = {"<s>": 0, "[UNK]": 1, "time": 2, "year": 3, "people": 4}
    made = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.add_special_tokens(["<s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def common(one: list[int], other: list[int]) -> int:
    """Length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def test_ids_have_the_wanted_number_and_no_two_prompts_are_alike() -> None:
    prompts, random = IdPrompts(range(50, 1000), NOTHING_SHARED, seed=1), Random(1)
    one, other = prompts.make("t", 64, random), prompts.make("t", 64, random)
    assert len(one) == len(other) == 64
    assert set(one) <= set(range(50, 1000))
    assert common(one, other) < 4


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_a_share_of_a_tenants_prompts_is_common_to_them(share: float) -> None:
    prompts, random = IdPrompts(range(1000), SharedPrefix(share), seed=1), Random(1)
    one, other, stranger = (prompts.make(tenant, 200, random) for tenant in ("a", "a", "b"))
    assert share * 200 <= common(one, other) < share * 200 + 3
    assert common(one, stranger) < 3


def test_a_prefix_of_another_length_begins_alike() -> None:
    prompts, random = IdPrompts(range(1000), SharedPrefix(0.5), seed=1), Random(1)
    assert prompts.make("a", 100, random)[:50] == prompts.make("a", 400, random)[:50]


def test_a_prefix_may_be_common_to_all() -> None:
    prompts, random = IdPrompts(range(1000), SharedPrefix(1.0, SharedBy.ALL), seed=1), Random(1)
    assert prompts.make("a", 100, random) == prompts.make("b", 100, random)


def test_words_are_counted_by_the_tokenizer_special_tokens_included(tokenizer: Path) -> None:
    count = token_counter(tokenizer)
    text = WordPrompts(count, NOTHING_SHARED, seed=1).make("t", 32, Random(1))
    assert count(text) == 32
    assert len(text.split()) == 31
    assert token_counter(tokenizer / "tokenizer.json")(text) == 32


def test_words_count_as_one_where_no_tokenizer_is_known() -> None:
    assert len(WordPrompts(None, NOTHING_SHARED, seed=1).make("t", 32, Random(1)).split()) == 32


def test_a_count_that_cannot_be_met_is_said() -> None:
    with pytest.raises(PromptError, match="exactly 33 tokens"):
        WordPrompts(lambda text: 2 * len(text.split()), NOTHING_SHARED, seed=1).make("t", 33, Random(1))


def test_special_tokens_are_no_prompt(tokenizer: Path) -> None:
    assert ordinary_ids(tokenizer) == [1, 2, 3, 4]


def test_a_tokenizer_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(PromptError, match="cannot use the tokenizer"):
            token_counter(folder)
