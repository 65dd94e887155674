"""`/v1/chat/completions`: conversations in, messages out, in OpenAI's shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenora_adapters.token_bytes import TokenBytes
from tenora_engine.wire import TokenLogprob
from tenora_platform.gateway.answer import Finish, Piece
from tenora_platform.gateway.errors import InvalidRequest
from tenora_platform.gateway.requests import ChatRequest, Message
from tenora_platform.gateway.tab import Charged
from tenora_platform.gateway.tokenizer import TemplateError, Tokenizer
from tenora_platform.gateway.wording import Heading, UsageBody, clamped, event, token_text, usage_body


class Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenInfo(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenInfo]
    refusal: None = None


class Delta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: Finish | None


class Chunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class AssistantMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Finish


class Completion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: UsageBody
    object: Literal["chat.completion"] = "chat.completion"


class ChatEndpoint:
    name = "chat.completions"
    id_prefix = "chatcmpl-"
    prompt_param = "messages"
    request = ChatRequest

    async def tokenize(self, asked: ChatRequest, tokenizer: Tokenizer, context_length: int) -> list[list[int]]:
        """Raises TextTooLong, and InvalidRequest when the model's template does not take these messages."""
        try:
            text = tokenizer.render([_template_message(message) for message in asked.messages])
        except TemplateError as error:
            raise InvalidRequest(f"{error}.", param="messages") from error
        return [await tokenizer.encode(text, add_special_tokens=False, at_most=context_length)]

    def voice(
        self, asked: ChatRequest, heading: Heading, _prompts: Sequence[Sequence[int]], token_bytes: TokenBytes
    ) -> ChatVoice:
        return ChatVoice(heading, token_bytes, logprobs=bool(asked.logprobs))


class ChatVoice:
    def __init__(self, heading: Heading, token_bytes: TokenBytes, *, logprobs: bool) -> None:
        self._heading = heading
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._begun: set[int] = set()

    def chunk(self, piece: Piece) -> bytes | None:
        first = piece.choice not in self._begun
        if not (first or piece.text or piece.tokens or piece.finish):
            return None
        self._begun.add(piece.choice)
        delta = Delta(
            role="assistant" if first else UNSET,
            content=piece.text if first or piece.text or piece.finish is None else UNSET,
        )
        logprobs = Logprobs(self._infos(piece.tokens)) if self._logprobs and piece.tokens else None
        return self._event([ChunkChoice(piece.choice, delta, logprobs, piece.finish)], None)

    def usage_chunk(self, charged: Charged) -> bytes:
        return self._event([], usage_body(charged))

    def whole(self, pieces: Sequence[Piece], charged: Charged) -> bytes:
        by_choice: dict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_choice[piece.choice].append(piece)
        heading = self._heading
        return msgspec.json.encode(
            Completion(
                id=heading.id,
                created=heading.created,
                model=heading.model,
                system_fingerprint=heading.system_fingerprint,
                choices=[self._choice(index, by_choice[index]) for index in sorted(by_choice)],
                usage=usage_body(charged),
            )
        )

    def _choice(self, index: int, pieces: list[Piece]) -> Choice:
        finish = pieces[-1].finish
        assert finish is not None
        infos = [info for piece in pieces for info in self._infos(piece.tokens)]
        return Choice(
            index=index,
            message=AssistantMessage("".join(piece.text for piece in pieces)),
            logprobs=Logprobs(infos) if self._logprobs else None,
            finish_reason=finish,
        )

    def _event(self, choices: list[ChunkChoice], usage: UsageBody | None) -> bytes:
        heading = self._heading
        return event(
            Chunk(
                id=heading.id,
                created=heading.created,
                model=heading.model,
                system_fingerprint=heading.system_fingerprint,
                choices=choices,
                usage=usage if heading.include_usage else UNSET,
            )
        )

    def _infos(self, tokens: Sequence[TokenLogprob]) -> list[TokenInfo]:
        return [
            TokenInfo(
                token=token_text(self._token_bytes, token.token_id),
                logprob=clamped(token.logprob),
                bytes=list(self._token_bytes[token.token_id]),
                top_logprobs=[self._alternative(token_id, logprob) for token_id, logprob in token.top],
            )
            for token in tokens
        ]

    def _alternative(self, token_id: int, logprob: float) -> Alternative:
        return Alternative(
            token=token_text(self._token_bytes, token_id),
            logprob=clamped(logprob),
            bytes=list(self._token_bytes[token_id]),
        )


def _template_message(message: Message) -> dict[str, Any]:
    """As templates know messages: what OpenAI now calls "developer" was trained as "system"."""
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text, **named}
