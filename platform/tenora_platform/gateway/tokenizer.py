"""A base model's tokenizer and chat template, as its folder holds them.

The template is the model maker's program, run in jinja2's sandbox: it sees the messages and cannot change them,
import, or reach the file system.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jinja2
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenora_adapters.token_bytes import TokenBytes, UnsupportedTokenizer

_INLINE_CHARACTERS: Final = 4096  # longer texts are tokenised in a thread, so that the event loop keeps answering


class TokenizerError(Exception):
    """The folder holds no tokenizer that can be used."""


class TemplateError(Exception):
    """The chat template refused these messages. The message is safe to show."""


class TextTooLong(Exception):
    """The text cannot fit: known from its bytes, before any work is spent on it."""


class Tokenizer:
    """Text to token ids and back, and conversations to text. Read-only, so it can be shared."""

    def __init__(self, folder: Path) -> None:
        """Read a Hugging Face folder. Raises TokenizerError."""
        try:
            definition = (folder / "tokenizer.json").read_text(encoding="utf-8")
            config = json.loads((folder / "tokenizer_config.json").read_bytes())
            self.token_bytes = TokenBytes.from_tokenizer(json.loads(definition))
            self._longest_token = _longest_token(json.loads(definition), self.token_bytes)
            self._encoder = _read(definition)
            self.eos_ids = _end_tokens(folder, config, self._encoder)
            self._template = _compile(_template_source(folder, config))
        except (OSError, ValueError, KeyError, UnsupportedTokenizer, jinja2.TemplateSyntaxError) as error:
            raise TokenizerError(f"cannot use the tokenizer of {folder}: {error}") from error
        self._encoder.no_truncation()
        self._encoder.no_padding()
        specials = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self._specials = {name: text for name, text in specials.items() if text is not None}

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The conversation as the model was trained to read it, up to the assistant's turn. Raises TemplateError."""
        if self._template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, tools=None, **self._specials)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            raise TemplateError(f"the model's chat template refused the messages: {error}") from error

    async def encode(self, text: str, *, add_special_tokens: bool, at_most: int) -> list[int]:
        """Token ids. A rendered conversation already holds its special tokens: pass False, or BOS is doubled.

        Raises TextTooLong for a text that must be more than `at_most` tokens; one that merely is more, is encoded.
        """
        if self._longest_token is not None and len(text.encode()) > at_most * self._longest_token:
            raise TextTooLong
        if len(text) <= _INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # `encode` keeps the GIL for as long as it runs, and with it the event loop; the batch's form lets it go.
        (encoding,) = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)


def _longest_token(definition: dict[str, Any], token_bytes: TokenBytes) -> int | None:
    """Bytes of text that one token can stand for at most; None where the tokenizer may drop text."""
    added = definition.get("added_tokens") or []
    if definition.get("normalizer") is not None or any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    vocabulary = (len(token_bytes[token_id]) for token_id in range(len(token_bytes)))
    return max([*vocabulary, *(len(str(token["content"]).encode()) for token in added)])


def _read(definition: str) -> tokenizers.Tokenizer:
    """Raises ValueError."""
    try:
        return tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """From `chat_template.jinja`, or from the config: a string, or a list of named ones with a "default"."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((str(entry["template"]) for entry in template if entry["name"] == "default"), None)
    return template


def _compile(source: str | None) -> jinja2.Template | None:
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _end_tokens(folder: Path, config: dict[str, Any], encoder: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that end an answer: those of `generation_config.json`, and the tokenizer's own end token."""
    ids: set[int] = set()
    file = folder / "generation_config.json"
    if file.is_file():
        declared = json.loads(file.read_bytes()).get("eos_token_id")
        ids.update(declared if isinstance(declared, list) else [] if declared is None else [declared])
    token = _token_text(config.get("eos_token"))
    if token is not None and (token_id := encoder.token_to_id(token)) is not None:
        ids.add(token_id)
    return tuple(sorted(ids))


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    return str(token["content"]) if isinstance(token, dict) else token


class Tokenizers:
    """One tokenizer per folder, read when it is first needed, off the event loop."""

    def __init__(self) -> None:
        self._reading: dict[Path, asyncio.Task[Tokenizer]] = {}

    async def of(self, folder: Path) -> Tokenizer:
        """Raises TokenizerError; the next call tries again."""
        task = self._reading.get(folder)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(Tokenizer, folder))
            self._reading[folder] = task
        return await asyncio.shield(task)
