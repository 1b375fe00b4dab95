"""What a model allows at a place, in words, read off its JSON Schema: "an integer from 1 to 10,000,000".

One description serves wrong types, values out of range, missing keys and unions alike, so messages never differ in
what they promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


class Expectation:
    """The JSON Schema of *model*, walked along the location of a pydantic error."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._root: Schema = model.model_json_schema()
        self._defs: dict[str, Schema] = self._root.get("$defs", {})

    def at(self, location: Iterable[str | int]) -> list[Schema]:
        """The alternatives allowed at *location*, whose parts are keys, list indexes and names of union members."""
        schemas = list(self._flatten(self._root))
        for part in location:
            below = [found for schema in schemas for found in self._step(schema, part)]
            schemas = below or [schema for schema in schemas if _named(schema, part)] or schemas
        return schemas

    def keys(self, location: Iterable[str | int]) -> list[str]:
        """The keys that a mapping at *location* may have."""
        return sorted({key for schema in self.at(location) for key in schema.get("properties", {})})

    def words(self, location: Iterable[str | int]) -> str:
        """What is allowed at *location*: "one of a, b or null"."""
        schemas = self.at(location)
        examples = [repr(schema["examples"][0]) for schema in schemas if schema.get("examples")]
        said = " or ".join(dict.fromkeys(_describe(schema) for schema in schemas))
        return f"{said}, such as {examples[0]}" if examples else said

    def _step(self, schema: Schema, part: str | int) -> Iterator[Schema]:
        if isinstance(part, int):
            prefix = schema.get("prefixItems", [])
            inner = prefix[part] if part < len(prefix) else schema.get("items")
        else:
            inner = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        if isinstance(inner, dict):
            yield from self._flatten(inner)

    def _flatten(self, schema: Schema) -> Iterator[Schema]:
        """*schema* with references followed and alternatives spread, each with the examples given for the whole."""
        if "$ref" in schema:
            alternatives = [self._defs[schema["$ref"].rsplit("/", 1)[-1]]]
        else:
            alternatives = schema.get("anyOf") or schema.get("oneOf") or []
        if not alternatives:
            yield schema
        shared = {key: schema[key] for key in ("examples",) if key in schema}
        for alternative in alternatives:
            yield from self._flatten(alternative | shared)


def _named(schema: Schema, part: str | int) -> bool:
    """Whether *part* of an error's location is the name, or the tag, of the union member *schema*."""
    tags = (field.get("const") for field in schema.get("properties", {}).values())
    return part == schema.get("title") or part in tags


def _describe(schema: Schema) -> str:
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type")
    if kind == "object":
        keys = schema.get("required") or schema.get("properties")
        return f"a mapping with {', '.join(keys)}" if keys else "a mapping"
    if kind == "array":
        return "a list" + (f" of at least {schema['minItems']}" if "minItems" in schema else "")
    if kind == "string":
        return _describe_text(schema)
    if kind in {"integer", "number"}:
        return ("an integer" if kind == "integer" else "a number") + _range(schema)
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "another value")


def _describe_text(schema: Schema) -> str:
    if "format" in schema:
        return f"a {schema['format']}"
    pattern = f" matching {schema['pattern']}" if "pattern" in schema else ""
    return "a text" + pattern + (f" of at most {schema['maxLength']} characters" if "maxLength" in schema else "")


def _range(schema: Schema) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {_number(schema[key])}" for key, word in words.items() if key in schema)


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"
