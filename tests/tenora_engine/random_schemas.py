"""Random JSON schemas, of all that the engine says it enforces."""

from __future__ import annotations

from random import Random
from typing import Any

_NAMES = ("a", "b", "id", "x y", 'q"')


def random_schema(random: Random) -> Any:
    """Schemas whose values end soon; some parts refer to definitions."""
    definitions = {f"d{index}": _schema(random, 2, {}) for index in range(2)}
    return _schema(random, 0, definitions) | {"$defs": definitions}


def _schema(random: Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "enum", "types", "object", "array", "anyOf", "oneOf", "allOf"]
    kind = random.choice(kinds[: 6 if depth >= 3 else None] + (["$ref"] if definitions else []))
    match kind:
        case "string":
            return {"type": "string"} | random.choice(_STRINGS)
        case "integer" | "number":
            return {"type": kind} | random.choice(_RANGES) | ({"maximum": 99} if random.random() < 0.5 else {})
        case "boolean":
            return {"type": "boolean"}
        case "enum":
            values = ["aa", 12, 1.5, None, True, [1, "a"], {"b": []}, "no\n"]
            return {"enum": random.sample(values, 3)} if random.random() < 0.5 else {"const": random.choice(values)}
        case "types":
            return random.choice(_TYPES)
        case "object":
            return _object(random, depth, definitions)
        case "array":
            return _array(random, depth, definitions)
        case "anyOf" | "allOf":
            count = random.randint(1, 3) if kind == "anyOf" else 1
            return {kind: [_schema(random, depth + 1, definitions) for _ in range(count)]}
        case "oneOf":
            branches = [{"type": "boolean"}, {"type": "string", "maxLength": 4}, _array(random, depth, definitions)]
            return {"oneOf": branches}
    return {"$ref": f"#/$defs/{random.choice(list(definitions))}"}


_STRINGS: list[dict[str, Any]] = [
    {},
    {"minLength": 2, "maxLength": 4},
    {"maxLength": 3},
    {"pattern": "^[a-c]{1,3}$"},
    {"pattern": "a.c|x+"},
    {"pattern": "^(no|yes)?[^a-z]$"},
    {"format": "date"},
    {"format": "ipv4"},
]
_TYPES: list[dict[str, Any]] = [
    {"type": ["boolean", "null"]},
    {"type": ["integer", "string"], "maxLength": 3, "maximum": 7},
    {"type": ["object", "null"], "properties": {"a": {"type": "null"}}, "additionalProperties": False},
]
_RANGES: list[dict[str, Any]] = [
    {},
    {"minimum": -5},
    {"exclusiveMinimum": 3},
    {"minimum": 12, "exclusiveMaximum": 21},
]


_NAMES_OF_MEMBERS: list[dict[str, Any]] = [
    {"pattern": "^[xy]$"},
    {"type": "string", "pattern": "^[xy]$"},
    {"maxLength": 2},
    {"enum": ["x", "y z"]},
    {"const": "x", "type": "string"},
]


def _object(random: Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    match random.randrange(5):
        case 0:
            members = _schema(random, depth + 1, definitions)
            return schema | {"patternProperties": {"^[ab]$": members}, "maxProperties": 2}
        case 1:
            return schema | {"propertyNames": random.choice(_NAMES_OF_MEMBERS), "maxProperties": 2}
        case 2:
            schema |= {"minProperties": 1, "maxProperties": 3}
    names = random.sample(_NAMES, random.randint(1, 3))
    schema["properties"] = {name: _schema(random, depth + 1, definitions) for name in names}
    schema["required"] = random.sample(names, random.randint(0, len(names)))
    schema["additionalProperties"] = False if 'q"' in names else random.choice([False, {"type": "boolean"}])
    return schema


def _array(random: Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    items = _schema(random, depth + 1, definitions)
    if random.random() < 0.3:
        rest = random.choice([False, {"type": "null"}])
        return {"type": "array", "prefixItems": [items, {"type": "null"}], "items": rest}
    return {"type": "array", "items": items, "minItems": random.randint(0, 2), "maxItems": random.randint(2, 3)}
