"""`/v1/completions`: text or token ids in, text out, in OpenAI's shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenora_adapters.token_bytes import TokenBytes
from tenora_engine.wire import TokenLogprob
from tenora_platform.gateway.answer import Finish, Piece
from tenora_platform.gateway.detokenize import Detokenizer
from tenora_platform.gateway.requests import CompletionRequest
from tenora_platform.gateway.tab import Charged
from tenora_platform.gateway.tokenizer import Tokenizer
from tenora_platform.gateway.wording import Heading, UsageBody, clamped, event, token_text, usage_body


class Logprobs(msgspec.Struct, frozen=True):
    """Four lists, one entry per token. `text_offset` counts characters from the beginning of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Finish | None


class Completion(msgspec.Struct, frozen=True):
    """A whole answer, and a chunk of one: they have the same shape."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: UsageBody | UnsetType | None = UNSET
    object: Literal["text_completion"] = "text_completion"


class CompletionEndpoint:
    name = "completions"
    id_prefix = "cmpl-"
    prompt_param = "prompt"
    request = CompletionRequest

    async def tokenize(self, asked: CompletionRequest, tokenizer: Tokenizer, context_length: int) -> list[list[int]]:
        """Token ids are taken as they are: nothing is put before them. Raises TextTooLong."""
        return [
            prompt
            if not isinstance(prompt, str)
            else await tokenizer.encode(prompt, add_special_tokens=True, at_most=context_length)
            for prompt in asked.prompts
        ]

    def voice(
        self, asked: CompletionRequest, heading: Heading, prompts: Sequence[Sequence[int]], token_bytes: TokenBytes
    ) -> CompletionVoice:
        echoed = [_text(prompt, token_bytes) for prompt in asked.prompts] if asked.echo else []
        return CompletionVoice(heading, token_bytes, prompts, asked.n or 1, echoed, asked.logprobs is not None)


class CompletionVoice:
    """Words pieces in the order in which they come: a choice's text offsets go on from piece to piece."""

    def __init__(
        self,
        heading: Heading,
        token_bytes: TokenBytes,
        prompts: Sequence[Sequence[int]],
        n: int,
        echoed: list[str],
        logprobs: bool,
    ) -> None:
        self._heading = heading
        self._token_bytes = token_bytes
        self._prompts = prompts
        self._n = n
        self._echoed = echoed  # the prompts' texts; empty unless they were asked for
        self._logprobs = logprobs
        self._prompt_logprobs: dict[int, Sequence[TokenLogprob | None]] = {}
        self._offsets: dict[int, _Offsets] = {}

    def chunk(self, piece: Piece) -> bytes | None:
        choice = self._choice(piece)
        if not (choice.text or choice.finish_reason or (choice.logprobs and choice.logprobs.tokens)):
            return None
        return event(self._completion([choice], None))

    def usage_chunk(self, charged: Charged) -> bytes:
        return event(self._completion([], usage_body(charged)))

    def whole(self, pieces: Sequence[Piece], charged: Charged) -> bytes:
        by_choice: dict[int, list[Choice]] = defaultdict(list)
        for piece in pieces:
            by_choice[piece.choice].append(self._choice(piece))
        choices = [_joined(by_choice[index]) for index in sorted(by_choice)]
        completion = self._completion(choices, None)
        return msgspec.json.encode(msgspec.structs.replace(completion, usage=usage_body(charged)))

    def _completion(self, choices: list[Choice], usage: UsageBody | None) -> Completion:
        heading = self._heading
        return Completion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=choices,
            usage=usage if heading.include_usage else UNSET,
        )

    def _choice(self, piece: Piece) -> Choice:
        part = piece.choice // self._n
        if piece.prompt_tokens:
            self._prompt_logprobs[part] = piece.prompt_tokens
        first = piece.choice not in self._offsets
        offsets = self._offsets.setdefault(piece.choice, _Offsets(self._token_bytes))
        text = piece.text
        logprobs = Logprobs([], [], [], [])
        if first and self._echoed:
            text = self._echoed[part] + text
            known = self._prompt_logprobs.get(part, ())
            for token_id, logprob in zip(self._prompts[part], known, strict=False):
                self._add(logprobs, token_id, logprob, offsets)
        for token in piece.tokens:
            self._add(logprobs, token.token_id, token, offsets)
        return Choice(piece.choice, text, logprobs if self._logprobs else None, piece.finish)

    def _add(self, logprobs: Logprobs, token_id: int, token: TokenLogprob | None, offsets: _Offsets) -> None:
        logprobs.tokens.append(token_text(self._token_bytes, token_id))
        logprobs.text_offset.append(offsets.next(token_id))
        logprobs.token_logprobs.append(None if token is None else clamped(token.logprob))
        if token is None:
            logprobs.top_logprobs.append(None)
            return
        top = {token_text(self._token_bytes, other): clamped(logprob) for other, logprob in token.top}
        top.setdefault(token_text(self._token_bytes, token_id), clamped(token.logprob))
        logprobs.top_logprobs.append(top)


class _Offsets:
    """Where in a choice's text each of its tokens begins, in characters."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._offset = 0

    def next(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._detokenizer.push(token_id))
        return offset


def _joined(choices: Sequence[Choice]) -> Choice:
    """One choice from its parts, in order."""
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    logprobs = Logprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
    return Choice(
        index=choices[0].index,
        text="".join(choice.text for choice in choices),
        logprobs=logprobs if parts else None,
        finish_reason=choices[-1].finish_reason,
    )


def _text(prompt: str | Sequence[int], token_bytes: TokenBytes) -> str:
    return (
        prompt if isinstance(prompt, str) else b"".join(token_bytes[token] for token in prompt).decode(errors="replace")
    )
