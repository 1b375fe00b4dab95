"""Writes docs/scenario.md, the table of every field of a scenario, from the pydantic model that reads scenarios."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulator.forecast.scenario import Described, Scenario
from simulator.forecast.scenario_serving import ServingScenario

HEAD = """\
# Fields of a scenario

Generated from `simulator/forecast/scenario.py` by `make docs`; do not edit. The same as a JSON Schema, for editors
that complete and check YAML: [scenario.schema.json](scenario.schema.json). Examples: the files in
[scenarios](../scenarios).

A key that is not in these tables is refused. `--set parallel.ep=64` changes a field for one run.
"""
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false"}


SERVING = """\
# Fields of a scenario of serving

Generated from `simulator/forecast/scenario_serving.py`. Where `training` is, `serving` may be instead, and then these
tables hold; `name`, `description`, `model`, `cluster`, `routing` and `usd_per_accelerator_hour` are as above.
"""


def page() -> str:
    """The whole page."""
    serving = _sections("", ServingScenario, " of serving", Described)
    return "\n".join([HEAD, *_sections("", Scenario), SERVING, *serving])


def _sections(path: str, model: type[BaseModel], kind: str = "", told: type[BaseModel] | None = None) -> Iterator[str]:
    """The table of *model*, which stands at *path* of the document, then those of the sections inside it; without the
    fields of *told*, under titles that end in *kind*.
    """
    inner = []
    yield f"## {f'`{path}`' if path else 'Top level'}{kind}\n"
    yield f"{_plain(model.__doc__)}\n"
    yield "| field | allowed | default | what it is |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if told and name in told.model_fields:
            continue
        where = f"{path}.{name}" if path else name
        section = _section(field.annotation)
        if section:
            inner.append((where, section))
        several = "list of sections" if section and get_origin(field.annotation) is tuple else "section"
        link = f"{several}, see [{where}](#{where.replace('.', '')}{kind.replace(' ', '-')})"
        plain = _plain_values(field.annotation)
        allowed = " or ".join([*plain, link]) if section else _allowed(field)
        meaning = _plain(field.description or (section.__doc__ if section else ""))
        yield f"| `{name}` | {allowed} | {_default(field, section)} | {meaning} |"
    yield ""
    for where, section in inner:
        yield from _sections(where, section, kind)


def _section(kind: Any) -> type[BaseModel] | None:
    """The section that a field holds, one or a list of them."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(_section, get_args(kind))), None)


def _plain_values(kind: Any) -> list[str]:
    """The values spelt out that a field takes beside a section."""
    return [_kind(part) for part in get_args(kind) if get_origin(part) is Literal] if _is_union(kind) else []


def _allowed(field: FieldInfo) -> str:
    return _plain(" ".join([_kind(field.annotation), *_units(field), *_limits(field.metadata)]))


def _kind(kind: Any) -> str:
    """*kind* in words; values that are spelt out are listed."""
    if get_origin(kind) is Annotated:
        units = [word for note in kind.__metadata__ if isinstance(note, FieldInfo) for word in _units(note)]
        return " ".join([_kind(get_args(kind)[0]), *units, *_limits(kind.__metadata__)])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        key, value = map(_kind, get_args(kind))
        return f"map of {key} to {value}"
    if _is_union(kind):
        return " or ".join(_kind(part) for part in get_args(kind) if part is not types.NoneType)
    return _NAMES.get(kind, str(kind))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, types.UnionType}


def _units(field: FieldInfo) -> Iterator[str]:
    """That a quantity may be written with its unit: then a number has a text for an example."""
    if field.annotation in {float, None} and field.examples:
        yield f"or text such as `{field.examples[0]}`"


def _limits(constraints: Any) -> Iterator[str]:
    """The numeric limits among a field's constraints; inside an `Annotated` they stand in a Field of their own."""
    for constraint in constraints:
        if isinstance(constraint, FieldInfo):
            yield from _limits(constraint.metadata)
        for name, sign in _SIGNS.items():
            if hasattr(constraint, name):
                yield f"{sign} {getattr(constraint, name):,}".removesuffix(".0").replace(",", " ")


def _default(field: FieldInfo, section: type[BaseModel] | None) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return "none"
    if section and not isinstance(value, str):
        return "its fields' own"
    if isinstance(value, tuple):
        return "none" if not value else ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _plain(text: str | None) -> str:
    """*text* on one line, safe inside a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
