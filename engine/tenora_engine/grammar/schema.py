"""Which JSON schemas are enforced. Whatever the compiler would silently ignore is refused by name.

Enforced are (JSON Schema 2020-12) types with the assertions of `_ASSERTIONS`, and const, enum, anyOf, oneOf of schemas
that exclude each other, allOf of one schema, and references within the document. Found by experiment with xgrammar
0.2.9: what stands in `_ASSERTIONS` holds alone and together, except for the combinations that `_check_together` names.
Where other names than those of 'properties' are allowed, one thing is open: a model may write a name of these once more
with an escape in it (`"\\u0061"` for `"a"`), and then as one of the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from tenora_engine.grammar.errors import GrammarError
from tenora_engine.grammar.exclusion import exclude_each_other, types_of
from tenora_engine.grammar.expressions import whole_text

MAX_DEPTH: Final = 64  # of schemas within schemas

_ANNOTATIONS: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "example",
        "examples",
        "$comment",
        "$schema",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "$defs",
        "definitions",
    ]
)
_COMPOSITIONS: Final = ("$ref", "anyOf", "oneOf", "allOf")
_VALUES: Final = ("const", "enum")
_RANGE: Final = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_ASSERTIONS: Final[dict[str, frozenset[str]]] = {
    "string": frozenset(["pattern", "minLength", "maxLength", "format"]),
    "integer": _RANGE | {"multipleOf"},
    "number": _RANGE,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems"]),
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
        ]
    ),
}
_FORMATS: Final = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)


def enforceable(source: str) -> str:
    """The schema as the compiler is to read it: the same for every parser. Raises GrammarError."""
    try:
        schema = json.loads(source, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError as error:
        raise GrammarError("the schema is nested too deeply") from error
    except ValueError as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
    _Document(schema).check(schema, "#", 0)
    return json.dumps(schema)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise GrammarError("the schema has an object with the same name twice")
    return members


def _no_number(text: str) -> NoReturn:
    raise GrammarError(f"the schema is not valid JSON: {text} is no number")


class _Document:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._checked: set[int] = set()  # by identity: a schema may be referred to from many places

    def check(self, schema: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise GrammarError(f"{path}: the schema is nested more than {MAX_DEPTH} deep")
        if isinstance(schema, bool) or id(schema) in self._checked:
            return
        if not isinstance(schema, dict):
            raise GrammarError(f"{path}: a schema must be an object or a boolean")
        self._checked.add(id(schema))
        for name in ("$defs", "definitions"):
            for key, definition in _members(schema, name, path):
                self.check(definition, f"{path}/{name}/{key}", depth + 1)
        assertions = schema.keys() - _ANNOTATIONS
        composition = [name for name in _COMPOSITIONS if name in schema]
        values = [name for name in _VALUES if name in schema]
        if composition:
            _check_alone(composition[0], assertions, path)
            self._check_composition(composition[0], schema, path, depth)
        elif values:
            _check_alone(values[0], assertions - {"type"}, path)
            _check_values(schema, values[0], path)
        elif assertions:
            types = _types(schema, path)
            _check_enforced(schema, assertions, types, path)
            self._check_members(schema, path, depth)

    def _check_composition(self, name: str, schema: dict[str, Any], path: str, depth: int) -> None:
        if name == "$ref":
            self.check(self._resolve(schema[name], path), str(schema[name]), depth + 1)
            return
        branches = schema[name]
        if not isinstance(branches, list) or not branches:
            raise GrammarError(f"{path}: '{name}' must be a list of schemas")
        if name == "allOf" and len(branches) > 1:
            raise GrammarError(f"{path}: 'allOf' of more than one schema would not be enforced")
        for index, branch in enumerate(branches):
            self.check(branch, f"{path}/{name}/{index}", depth + 1)
        if name == "oneOf" and not exclude_each_other([self._followed(branch) for branch in branches]):
            raise GrammarError(f"{path}: 'oneOf' of schemas that may hold together would not be enforced; use 'anyOf'")

    def _check_members(self, schema: dict[str, Any], path: str, depth: int) -> None:
        for name in ("properties", "patternProperties"):
            for key, member in _members(schema, name, path):
                self.check(member, f"{path}/{name}/{key}", depth + 1)
        for name in ("items", "additionalProperties"):
            if name in schema:
                self.check(schema[name], f"{path}/{name}", depth + 1)
        if "propertyNames" in schema:
            _check_names(schema["propertyNames"], f"{path}/propertyNames")
        for index, member in enumerate(schema.get("prefixItems", ())):
            self.check(member, f"{path}/prefixItems/{index}", depth + 1)

    def _resolve(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise GrammarError(f"{path}: the reference {str(reference)[:200]!r} does not point into this schema")
        target = self._root
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                raise GrammarError(f"{path}: the reference {reference[:200]!r} points to nothing")
            target = target[name]
        return target

    def _followed(self, schema: Any) -> Any:
        """A schema, or what it refers to; references to references are not followed."""
        return self._resolve(schema["$ref"], "#") if isinstance(schema, dict) and "$ref" in schema else schema


def _members(schema: dict[str, Any], name: str, path: str) -> list[tuple[str, Any]]:
    members = schema.get(name, {})
    if not isinstance(members, dict):
        raise GrammarError(f"{path}: '{name}' must be an object")
    return list(members.items())


def _check_alone(name: str, assertions: set[str], path: str) -> None:
    for other in sorted(assertions - {name}):
        raise GrammarError(f"{path}: '{other}' beside '{name}' would not be enforced")


def _types(schema: dict[str, Any], path: str) -> list[str]:
    types = schema.get("type")
    if types is None and "properties" in schema:
        return ["object"]
    if types is None and not schema.keys().isdisjoint({"items", "prefixItems"}):
        return ["array"]
    types = types if isinstance(types, list) else [types]
    for kind in types:
        if not isinstance(kind, str) or kind not in _ASSERTIONS:
            raise GrammarError(f"{path}: 'type' must name types of JSON, or nothing would be enforced")
    return types


def _check_values(schema: dict[str, Any], name: str, path: str) -> None:
    values = schema[name] if name == "enum" else [schema[name]]
    if not isinstance(values, list) or not values:
        raise GrammarError(f"{path}: 'enum' must be a list of values")
    if "type" in schema:
        types = _types(schema, path)
        for value in values:
            if not types_of(value) & {*types}:
                raise GrammarError(f"{path}: {json.dumps(value)[:200]} is not of the type that 'type' names")


def _check_names(names: Any, path: str) -> None:
    """Names are texts, said or not. Whatever else a schema of names allows, the compiler would let stand as a name."""
    if not isinstance(names, dict):
        raise GrammarError(f"{path}: a schema of names must be an object")
    if names.get("type", "string") != "string":
        raise GrammarError(f"{path}: 'type' must be 'string': names are texts")
    texts = {"type": "string"} | names
    assertions = texts.keys() - _ANNOTATIONS
    values = [name for name in _VALUES if name in texts]
    if values:
        _check_alone(values[0], assertions - {"type"}, path)
        _check_values(texts, values[0], path)
    else:
        _check_enforced(texts, assertions, ["string"], path)


def _check_enforced(schema: dict[str, Any], assertions: set[str], types: list[str], path: str) -> None:
    enforced = {"type"}.union(*(_ASSERTIONS[kind] for kind in types))
    for name in sorted(assertions - enforced):
        raise GrammarError(f"{path}: '{name}' would not be enforced")
    _check_shapes(schema, path)
    if "format" in schema and schema["format"] not in _FORMATS:
        raise GrammarError(f"{path}: the format {str(schema['format'])[:200]!r} would not be enforced")
    if "multipleOf" in schema and ("number" in types or type(schema["multipleOf"]) is not int):
        raise GrammarError(f"{path}: 'multipleOf' is enforced for integers and whole numbers only")
    members = [name for name, _ in _members(schema, "properties", path)]
    for name in sorted({*schema.get("required", ())}.difference(members)):
        raise GrammarError(f"{path}: {name[:200]!r} is required but not among 'properties': it would not be enforced")
    for pattern in (*schema.get("patternProperties", ()), schema.get("pattern", "")):
        whole_text(pattern)
    if schema.get("additionalProperties", True) is not False:
        _check_spelled_plainly(members, path)
    _check_together(schema, path)


def _check_spelled_plainly(names: Iterable[str], path: str) -> None:
    """The compiler tells other names from these by their characters. Beside one with a quote it has `{"q">": 1}`
    written, which is no JSON."""
    for name in names:
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise GrammarError(f"{path}: the name {json.dumps(name)[:200]} needs 'additionalProperties' to be false")


def _check_shapes(schema: dict[str, Any], path: str) -> None:
    """Of what is read here; the compiler checks the rest."""
    for name, kind in (("pattern", str), ("format", str), ("required", list), ("prefixItems", list)):
        if not isinstance(schema.get(name, kind()), kind):
            raise GrammarError(f"{path}: '{name}' must be a {'text' if kind is str else 'list'}")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise GrammarError(f"{path}: 'required' must be a list of names")


def _check_together(schema: dict[str, Any], path: str) -> None:
    """Of each group one at most: the others would not be enforced. And a name that is not of 'properties' may be
    written twice, which counts once."""
    for group in (
        ({"pattern"}, {"format"}, {"minLength", "maxLength"}),
        ({"properties", "required", "additionalProperties"}, {"patternProperties"}, {"propertyNames"}),
    ):
        present = [sorted(names & schema.keys())[0] for names in group if names & schema.keys()]
        if len(present) > 1:
            raise GrammarError(f"{path}: '{present[1]}' beside '{present[0]}' would not be enforced")
    least, certain = schema.get("minProperties", 0), len({*schema.get("required", ())}) + 1
    if isinstance(least, int | float) and least > certain and schema.get("additionalProperties", True) is not False:
        raise GrammarError(
            f"{path}: 'minProperties' above {certain} is enforced only where 'additionalProperties' is false"
        )
    if len(schema.get("patternProperties", ())) > 1:
        raise GrammarError(f"{path}: 'patternProperties' is enforced for one pattern only")
