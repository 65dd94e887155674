"""What a client may ask for: the request bodies of `/v1`, strictly typed and with every limit in one place.

Anything that is not named here is refused, so a parameter is never silently without effect. JSON is parsed from
the raw bytes: NaN, Infinity and numbers that overflow to them are refused, `true` is no integer, "1" no number.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tenora_platform.gateway.errors import InvalidRequest
from tenora_platform.gateway.structure import StructuredRequest

MAX_CHOICES: Final = 128  # over all prompts of one request
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKENS: Final = 64
MAX_BIASES: Final = 1024
MAX_TOP_LOGPROBS: Final = 20
MAX_ADAPTERS: Final = 4  # in one request, that of `model` included
MAX_ADAPTER_SCALE: Final = 100

# Asked for often enough to deserve a plain answer instead of "unknown parameter".
_NOT_BUILT: Final = frozenset({"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "suffix"})

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
_Token = Annotated[int, Field(ge=0)]
_Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_MaxTokens = Annotated[int, Field(ge=1, le=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(_Strict):
    include_usage: bool | None = None


class AdapterChoice(_Strict):
    """One of the tenant's adapters of the base, by name or `name@version`, and how much of it is added."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    scale: Annotated[float, Field(ge=-MAX_ADAPTER_SCALE, le=MAX_ADAPTER_SCALE)] = 1.0


class GenerationRequest(StructuredRequest):
    """What both endpoints share."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    adapters: Annotated[list[AdapterChoice], Field(max_length=MAX_ADAPTERS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None  # -1 and 0 are off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: _Int64 | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[_Token], Field(max_length=MAX_STOP_TOKENS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @field_validator("logit_bias")
    @classmethod
    def _biases(cls, biases: dict[str, float] | None) -> dict[str, float] | None:
        for key, value in (biases or {}).items():
            if not re.fullmatch(r"[0-9]{1,9}", key, re.ASCII):
                raise ValueError(f"key {key[:40]!r} is not a token id")
            if not -100 <= value <= 100:
                raise ValueError(f"the bias of token {key} must lie between -100 and 100")
        return biases

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("'stream_options' is only allowed with 'stream': true.", param="stream_options")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    refusal: None = None  # what OpenAI's client echoes of an earlier answer
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _content_unless_assistant(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self

    @property
    def text(self) -> str:
        """Text parts are joined as they stand, with nothing between them."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_tokens: _MaxTokens | None = None
    max_completion_tokens: _MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequest("'max_tokens' and 'max_completion_tokens' differ.", param="max_tokens")
        return self


class CompletionRequest(GenerationRequest):
    prompt: str | list[_Token] | list[str] | list[list[_Token]]
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("'max_tokens': 0 needs 'echo': true.", param="max_tokens")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest("'best_of' other than 'n' is not supported.", param="best_of")
        if not self.prompt or (isinstance(self.prompt[0], str | list) and not all(self.prompts)):
            raise InvalidRequest("'prompt' is empty.", param="prompt")
        if len(self.prompts) * (self.n or 1) > MAX_CHOICES:
            raise InvalidRequest(f"More than {MAX_CHOICES} choices in one request.", param="n")
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One text, or list of token ids, per prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return self.prompt


_Request = TypeVar("_Request", bound=GenerationRequest)


def parse(kind: type[_Request], body: bytes) -> _Request:
    """Raises InvalidRequest naming the parameter at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    # Every member of a union reports its own error: the deepest is of the member that the client meant.
    fault = max((e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"]))
    location: tuple[int | str, ...] = fault["loc"]
    if fault["type"] == "json_invalid":
        raise InvalidRequest(f"The body is not valid JSON: {fault['msg'].removeprefix('Invalid JSON: ')}.")
    if not location:
        raise InvalidRequest("The body must be a JSON object.")
    param = _param(location)
    if location[0] in _NOT_BUILT or param.endswith("tool_calls"):
        raise InvalidRequest(
            f"'{param}' is not supported by this server yet.", param=param, code="unsupported_parameter"
        )
    if fault["type"] == "extra_forbidden":
        raise InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    reason = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    raise InvalidRequest(f"Invalid '{param}': {reason}.", param=param, code="invalid_value")


def _param(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`; what pydantic adds to tell the members of a union apart is left out."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif re.fullmatch(r"[a-z_]{1,64}", step) and step not in {"str", "int"}:
            path += f".{step}" if path else step
        elif not path:
            return step[:64]
        else:
            break
    return path
