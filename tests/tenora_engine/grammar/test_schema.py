"""Which schemas are taken: what the compiler enforces, and of the rest a refusal by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from compiler_under_test import CompilerUnderTest

from tenora_engine.grammar.errors import GrammarError
from tenora_engine.grammar.schema import MAX_DEPTH, enforceable
from tenora_engine.wire import GrammarKind

OBJECT: dict[str, Any] = {"type": "object"}
INTEGER: dict[str, Any] = {"type": "integer"}
NESTED: dict[str, Any] = {}
for _ in range(MAX_DEPTH + 1):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ([], "must be an object or a boolean"),
        ({"type": "sting"}, "'type' must name types"),
        ({"type": 5}, "'type' must name types"),
        ({"pattern": "a"}, "'type' must name types"),
        ({"type": "string", "pattern": 7}, "'pattern' must be a text"),
        ({"type": "string", "pattern": "a(^b)"}, "'^'"),
        ({"type": "string", "format": "colour"}, "the format 'colour'"),
        ({"type": "string", "pattern": "a", "minLength": 1}, "'minLength' beside 'pattern'"),
        ({"type": "string", "minimum": 1}, "'minimum' would not be enforced"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' would not be enforced"),
        ({"type": "array", "contains": INTEGER}, "'contains' would not be enforced"),
        ({"type": "number", "multipleOf": 2}, "'multipleOf'"),
        ({"type": "integer", "multipleOf": 0.5}, "'multipleOf'"),
        (OBJECT | {"required": ["a"]}, "'a' is required but not among"),
        (OBJECT | {"required": "a"}, "'required' must be a list"),
        (OBJECT | {"required": [1]}, "'required' must be a list of names"),
        (OBJECT | {"properties": []}, "'properties' must be an object"),
        (OBJECT | {"properties": 5}, "'properties' must be an object"),
        (OBJECT | {"properties": {'q"': INTEGER}}, "needs 'additionalProperties' to be false"),
        (OBJECT | {"properties": {"q\\": INTEGER}, "additionalProperties": INTEGER}, "needs 'additionalProperties'"),
        (OBJECT | {"properties": {"q\n": INTEGER}}, "needs 'additionalProperties'"),
        (OBJECT | {"patternProperties": {"a": {}, "b": {}}}, "for one pattern only"),
        (OBJECT | {"patternProperties": {"a": {}}, "propertyNames": {}}, "'propertyNames' beside"),
        (OBJECT | {"dependentRequired": {}}, "'dependentRequired' would not be enforced"),
        ({"not": INTEGER}, "'type' must name types"),
        ({"allOf": [INTEGER, INTEGER]}, "'allOf' of more than one"),
        ({"anyOf": [], "title": "none"}, "'anyOf' must be a list"),
        ({"anyOf": [INTEGER], "type": "integer"}, "'type' beside 'anyOf'"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "may hold together"),
        ({"enum": []}, "'enum' must be a list"),
        ({"enum": ["a"], "type": "integer"}, "not of the type"),
        ({"enum": ["a"], "minLength": 1}, "'minLength' beside 'enum'"),
        ({"$ref": "#/$defs/none"}, "points to nothing"),
        ({"$ref": "https://example.com/schema"}, "does not point into this schema"),
        ({"$ref": "file:///etc/passwd"}, "does not point into this schema"),
        (NESTED, "nested more than"),
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, str) else "",
)
def test_what_would_not_be_enforced_is_refused_by_name(schema: Any, word: str):
    """STR-01, STR-05: a missing pointer and a remote one among them."""
    with pytest.raises(GrammarError, match=re.escape(word)):
        enforceable(json.dumps(schema))


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (True, "must be an object"),
        (INTEGER, "names are texts"),
        ({"type": ["string", "null"]}, "names are texts"),
        ({"enum": ["a", 1]}, "1 is not of the type"),
        ({"const": None}, "null is not of the type"),
        ({"anyOf": [{"pattern": "a"}]}, "'anyOf' would not be enforced"),
        ({"$ref": "#"}, "'$ref' would not be enforced"),
        ({"minimum": 1}, "'minimum' would not be enforced"),
        ({"pattern": "a", "maxLength": 1}, "beside 'pattern'"),
    ],
    ids=str,
)
def test_names_are_texts(names: Any, word: str):
    """The compiler would have `{1: ...}` and `{null: ...}` written, and ignores patterns below 'anyOf'."""
    with pytest.raises(GrammarError, match=re.escape(word)):
        enforceable(json.dumps(OBJECT | {"propertyNames": names}))


@pytest.mark.parametrize(
    "names",
    [{"pattern": "^[xy]$"}, {"maxLength": 1}, {"enum": ["x", "y"]}, {"const": "x"}, {"type": "string"}],
    ids=str,
)
def test_a_schema_of_names_need_not_say_that_they_are_texts(compiler: CompilerUnderTest, names: dict[str, Any]):
    """And it holds for them."""
    schema = json.dumps(OBJECT | {"propertyNames": names})
    matcher = compiler.constraint(GrammarKind.JSON_SCHEMA, schema)._matcher
    assert matcher.accept_string('{"x": 1}')
    matcher.reset()
    assert matcher.accept_string('{"zz": 1}') == (names == {"type": "string"})


@pytest.mark.parametrize("name", ["a", "x y", "é", 'q"', "q\\", "q\n", ""])
def test_a_name_is_any_text(compiler: CompilerUnderTest, name: str):
    """Where no others are allowed; but for those that JSON must escape also where they are."""
    closed = OBJECT | {"properties": {name: INTEGER}, "additionalProperties": False}
    matcher = compiler.constraint(GrammarKind.JSON_SCHEMA, json.dumps(closed))._matcher
    assert matcher.accept_string(json.dumps({name: 1}, ensure_ascii=False))
    assert matcher.is_completed()
    matcher.reset()
    assert not matcher.accept_string(json.dumps({name: True}, ensure_ascii=False))


def test_a_name_that_may_come_twice_counts_once():
    """`{"b": 1, "b": 2}` has one member to whoever reads it."""
    some = OBJECT | {"properties": {"a": INTEGER, "b": INTEGER}, "required": ["a"]}
    enforceable(json.dumps(some | {"minProperties": 2}))
    enforceable(json.dumps(some | {"minProperties": 3, "additionalProperties": False}))
    for schema in (some | {"minProperties": 3}, OBJECT | {"propertyNames": {"maxLength": 3}, "minProperties": 2}):
        with pytest.raises(GrammarError, match="'minProperties' above"):
            enforceable(json.dumps(schema))


def test_the_schema_is_the_same_for_every_reader():
    for source, word in (
        ('{"type": "string", "type": "integer"}', "the same name twice"),
        ('{"type": "integer", "minimum": NaN}', "NaN is no number"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ):
        with pytest.raises(GrammarError, match=re.escape(word)):
            enforceable(source)


def test_what_refers_to_itself_is_looked_at_once():
    """STR-01, STR-03: legal recursion, and a doubling at every level ("billion laughs")."""
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert json.loads(enforceable(json.dumps(node))) == node
    defs: dict[str, Any] = {"d0": INTEGER}
    for level in range(1, 50):
        defs[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    enforceable(json.dumps({"$ref": "#/$defs/d49", "$defs": defs}))


def test_oneof_of_what_excludes_each_other_is_taken():
    tagged = [
        OBJECT | {"properties": {"kind": {"const": kind}, kind: INTEGER}, "required": ["kind", kind]} for kind in "ab"
    ]
    for branches in (tagged, [INTEGER, {"type": "string"}], [{"enum": ["a", None]}, {"type": "boolean"}, INTEGER]):
        enforceable(json.dumps({"oneOf": branches}))
    optional = [tagged[0], tagged[1] | {"required": ["b"]}]
    with pytest.raises(GrammarError, match="may hold together"):
        enforceable(json.dumps({"oneOf": optional}))
