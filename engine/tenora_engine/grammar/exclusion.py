"""Whether schemas exclude each other, as far as that is plain: then oneOf is anyOf, which can be enforced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

_ALL: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})


def exclude_each_other(schemas: Sequence[Any]) -> bool:
    """By their types, or by a required member that each gives other values."""
    return all(_exclude(one, other) for one, other in combinations(schemas, 2))


def types_of(value: Any) -> set[str]:
    """The names of JSON's types that a value has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def _exclude(one: Any, other: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    types, other_types = _types(one), _types(other)
    if types.isdisjoint(other_types):
        return True
    if types != {"object"} or other_types != {"object"}:
        return False
    members, other_members = one.get("properties", {}), other.get("properties", {})
    required = {*one.get("required", ())} & {*other.get("required", ())} & members.keys() & other_members.keys()
    return any(_differ(members[name], other_members[name]) for name in required)


def _differ(one: Any, other: Any) -> bool:
    values, other_values = _values(one), _values(other)
    return values is not None and other_values is not None and values.isdisjoint(other_values)


def _types(schema: dict[str, Any]) -> set[str]:
    if "type" not in schema:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return set(_ALL) if values is None else set().union(*map(types_of, values))
    types = {schema["type"]} if isinstance(schema["type"], str) else {*schema["type"]}
    return types | {"integer"} if "number" in types else types


def _values(schema: Any) -> set[str] | None:
    """All values that are valid, as JSON; None where they are not told."""
    if not isinstance(schema, dict) or not schema.keys() & {"const", "enum"}:
        return None
    return {json.dumps(value) for value in schema.get("enum", [schema.get("const")])}
