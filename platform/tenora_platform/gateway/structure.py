"""What the text of an answer must look like: OpenAI's `response_format`, and the names that vLLM's clients use.

All come down to one grammar, which the engine checks, compiles and enforces. A stop string still ends the text where it
is found, inside a JSON object as anywhere else, with the finish reason "stop".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tenora_engine.wire import Grammar, GrammarKind
from tenora_platform.gateway.errors import InvalidRequest

MAX_CHOICE_TEXTS: Final = 10_000

_Expression = Annotated[str, Field(min_length=1)]
_Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICE_TEXTS)]
_Schema = dict[str, Any] | Annotated[str, Field(min_length=1)]  # vLLM takes the text of a schema as well


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class JsonSchema(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=4096)] | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None  # a schema is enforced either way


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise InvalidRequest(
                "'response_format.json_schema' belongs to the type 'json_schema'.", param="response_format.json_schema"
            )
        return self


class StructuredOutputs(_Strict):
    """vLLM's `structured_outputs`."""

    json_: Annotated[_Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: _Expression | None = None
    choice: _Texts | None = None
    grammar: _Expression | None = None


class StructuredRequest(_Strict):
    """The parameters of both endpoints that say what the text must look like; at most one of them may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: _Expression | None = None
    guided_choice: _Texts | None = None
    guided_grammar: _Expression | None = None


@dataclass(frozen=True)
class Structure:
    """What was asked for, and by which parameter."""

    grammar: Grammar
    param: str


def structure_of(asked: StructuredRequest) -> Structure | None:
    """Raises InvalidRequest when two parameters ask for one."""
    found = [structure for structure in _all(asked) if structure is not None]
    if len(found) > 1:
        raise InvalidRequest(f"'{found[1].param}' cannot be combined with '{found[0].param}'.", param=found[1].param)
    return found[0] if found else None


def _all(asked: StructuredRequest) -> list[Structure | None]:
    outputs = asked.structured_outputs or StructuredOutputs()
    return [
        _response_format(asked.response_format),
        _schema(outputs.json_, "structured_outputs.json"),
        Structure(_ANY_OBJECT, "structured_outputs.json_object") if outputs.json_object else None,
        _text(GrammarKind.REGEX, outputs.regex, "structured_outputs.regex"),
        _choice(outputs.choice, "structured_outputs.choice"),
        _text(GrammarKind.EBNF, outputs.grammar, "structured_outputs.grammar"),
        _schema(asked.guided_json, "guided_json"),
        _text(GrammarKind.REGEX, asked.guided_regex, "guided_regex"),
        _choice(asked.guided_choice, "guided_choice"),
        _text(GrammarKind.EBNF, asked.guided_grammar, "guided_grammar"),
    ]


_ANY_OBJECT: Final = Grammar(GrammarKind.JSON_OBJECT, "")


def _response_format(asked: ResponseFormat | None) -> Structure | None:
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is None:
        return Structure(_ANY_OBJECT, "response_format")
    return _schema(asked.json_schema.definition, "response_format")


def _schema(schema: dict[str, Any] | str | None, param: str) -> Structure | None:
    return _text(GrammarKind.JSON_SCHEMA, json.dumps(schema) if isinstance(schema, dict) else schema, param)


def _choice(texts: list[str] | None, param: str) -> Structure | None:
    return _text(GrammarKind.CHOICE, None if texts is None else json.dumps(texts), param)


def _text(kind: GrammarKind, source: str | None, param: str) -> Structure | None:
    return None if source is None else Structure(Grammar(kind, source), param)
