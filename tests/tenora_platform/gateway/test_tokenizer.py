from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from tenora_platform.gateway.chat import ChatEndpoint
from tenora_platform.gateway.completions import CompletionEndpoint
from tenora_platform.gateway.requests import ChatRequest, CompletionRequest, Message
from tenora_platform.gateway.tokenizer import TemplateError, TextTooLong, Tokenizer, TokenizerError, Tokenizers

ROOMY = 1_000_000  # tokens
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe? 語 😀"}],
    [
        {"role": "user", "content": "a\n\nb "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "<|im_end|> & <b>'\"</b>"},
    ],
]


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the real tokenizer, for a test to change."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(model_folder / name, tmp_path / name)
    return tmp_path


def configure(folder: Path, **values: Any) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("messages", CONVERSATIONS)
async def test_conversations_become_the_tokens_that_transformers_makes(
    model_folder: Path, messages: list[dict[str, Any]]
) -> None:
    """API-15: golden prompts, by the reference's own code; no BOS is put before the template's own."""
    reference = transformers.AutoTokenizer.from_pretrained(model_folder)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokenizer = Tokenizer(model_folder)
    assert tokenizer.render(messages) == expected
    assert await tokenizer.encode(expected, add_special_tokens=False, at_most=ROOMY) == reference.encode(
        expected, add_special_tokens=False
    )


async def test_the_event_loop_goes_on_while_a_long_text_is_tokenized(model_folder: Path) -> None:
    """API-06: one tenant's huge prompt does not hold up the streams of all."""
    tokenizer = Tokenizer(model_folder)
    encoding = asyncio.create_task(tokenizer.encode("a b" * 100_000, add_special_tokens=False, at_most=ROOMY))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await encoding) == 100_001
    assert turns > 100


async def test_a_text_that_cannot_fit_is_refused_before_any_work(model_folder: Path, folder: Path) -> None:
    """API-06: tokenising is what costs, and it comes before the quota; a text is never refused that might fit."""
    tokenizer = Tokenizer(model_folder)
    longest = max((tokenizer.token_bytes[token_id] for token_id in range(len(tokenizer.token_bytes))), key=len)
    text = (longest * 100).decode()
    await tokenizer.encode(text, add_special_tokens=False, at_most=100)
    with pytest.raises(TextTooLong):
        await tokenizer.encode(text + "a", add_special_tokens=False, at_most=100)

    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert await Tokenizer(folder).encode(" " * 10_000, add_special_tokens=False, at_most=1) == []


async def test_no_token_is_put_before_what_has_one(folder: Path) -> None:
    """API-06: a tokenizer that begins every text with BOS does so for plain text, and only there."""
    definition = json.loads((folder / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer(folder)
    asked = ChatRequest(model="m", messages=[Message(role="user", content="hi")])
    ((first, second, *_),) = await ChatEndpoint().tokenize(asked, tokenizer, ROOMY)
    assert (first, second) != (1, 1)
    assert first == 1
    (text,) = await CompletionEndpoint().tokenize(CompletionRequest(model="m", prompt="hi"), tokenizer, ROOMY)
    (ids,) = await CompletionEndpoint().tokenize(CompletionRequest(model="m", prompt=text[1:]), tokenizer, ROOMY)
    assert text == [1, *ids]


async def test_long_texts_are_the_same_in_a_thread(model_folder: Path) -> None:
    tokenizer = Tokenizer(model_folder)
    text = "The quick brown fox. " * 1000
    ids = await tokenizer.encode(text, add_special_tokens=True, at_most=ROOMY)
    assert b"".join(tokenizer.token_bytes[token_id] for token_id in ids).decode() == text


def test_the_end_tokens_of_both_files(folder: Path) -> None:
    assert Tokenizer(folder).eos_ids == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    configure(folder, eos_token={"content": "<|im_start|>"})
    assert Tokenizer(folder).eos_ids == (0, 1, 2)
    (folder / "generation_config.json").unlink()
    assert Tokenizer(folder).eos_ids == (1,)


def test_where_a_template_may_stand(folder: Path) -> None:
    configure(folder, chat_template=[{"name": "other", "template": "x"}, {"name": "default", "template": "y"}])
    assert Tokenizer(folder).render([]) == "y"
    (folder / "chat_template.jinja").write_text("z{{ bos_token }}")
    assert Tokenizer(folder).render([]) == "z<|im_start|>"


def test_without_a_template_there_is_no_chat(folder: Path) -> None:
    configure(folder, chat_template=None)
    with pytest.raises(TemplateError, match="no chat template"):
        Tokenizer(folder).render(CONVERSATIONS[0])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ raise_exception('no') }}",
        "{{ 1 + messages }}",
        "{{ messages[0].nothing.at.all }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_reaches_nothing_but_what_it_is_given(folder: Path, template: str) -> None:
    """API-15: its errors are the client's 400, never a crash."""
    configure(folder, chat_template=template)
    with pytest.raises(TemplateError):
        Tokenizer(folder).render(CONVERSATIONS[0])


@pytest.mark.parametrize("broken", ["tokenizer.json", "tokenizer_config.json"])
async def test_a_folder_that_cannot_be_used(folder: Path, broken: str) -> None:
    tokenizers = Tokenizers()
    whole = (folder / broken).read_text()
    (folder / broken).write_text("{")
    with pytest.raises(TokenizerError):
        await tokenizers.of(folder)
    (folder / broken).write_text(whole)
    first, second = await asyncio.gather(tokenizers.of(folder), tokenizers.of(folder))
    assert first is second
