"""A tree against a pydantic model: every error as a problem with the line of the value that caused it.

Validation is pydantic's strict JSON mode: `true` is no integer, "64" is no integer, 1.0 is no integer, a list is a
tuple. What pydantic says in several errors about one value, as for unions, becomes one problem.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simulator.documents.expectation import Expectation
from simulator.documents.problem import Problem, escape, nearest
from simulator.documents.tree import Node

M = TypeVar("M", bound=BaseModel)
_MOST_ERRORS = 200
"""Rendering is the slow part of a file with a hundred thousand unknown keys."""
_CUSTOM = {"value_error", "assertion_error"}
_KEY = "[key]"
"""How pydantic's locations end where a mapping's key, not its value, is wrong."""


def validate(root: Node, model: type[M]) -> tuple[M | None, list[Problem]]:
    """The document as *model*, or None and the problems found."""
    try:
        return model.model_validate_json(json.dumps(root.plain()), strict=True), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    expectation = Expectation(model)
    problems: dict[tuple[str, str], Problem] = {}
    for detail in _without_shallow_members(root, found[:_MOST_ERRORS]):
        for problem in _problems(root, detail, expectation):
            problems.setdefault((problem.where, problem.message), problem)
    listed = list(problems.values())
    if len(found) > _MOST_ERRORS:
        listed.append(Problem(root.source, None, "", f"... and {len(found) - _MOST_ERRORS} more problems"))
    return None, listed


def _problems(root: Node, detail: Any, expectation: Expectation) -> list[Problem]:
    location: tuple[str | int, ...] = detail["loc"]
    missing = detail["type"] == "missing"
    nodes, path = _walk(root, location[:-1] if missing else location)
    node = nodes[-1]
    if node.refused:
        return []
    if missing:
        path.append(str(location[-1]))
        messages = [f"missing key, expected {expectation.words(location)}"]
    elif detail["type"] == "extra_forbidden":
        messages = [f"unknown key; {nearest(path[-1], expectation.keys(location[:-1]))}"]
    elif location[-1:] == (_KEY,):
        said = detail["msg"].removeprefix("Input should be ")
        messages = [f"found the key '{escape(path[-1])}', expected {said}"]
    else:
        messages = _messages(node, detail, expectation.words(location[: _depth(root, location)]))
    where = ".".join(escape(part) for part in path)
    return [Problem(node.source, node.line, where, message) for message in messages]


def _messages(node: Node, detail: Any, expected: str) -> list[str]:
    if detail["type"] in _CUSTOM:
        return str(detail["ctx"]["error"]).splitlines() or ["refused"]
    if detail["type"].startswith("union_tag"):
        return [f"found {shown(node)}: {escape(detail['msg'], None)}"]
    return [f"found {shown(node)}, expected {expected}"]


def _walk(root: Node, location: Sequence[str | int]) -> tuple[list[Node], list[str]]:
    """The nodes along *location* and the path they have in the document; names of union members are passed over."""
    nodes, path = [root], list[str]()
    for part in location:
        value = nodes[-1].value
        if isinstance(value, dict) and str(part) in value:
            nodes.append(value[str(part)])
            path.append(str(part))
        elif isinstance(value, tuple) and isinstance(part, int) and part < len(value):
            nodes.append(value[part])
            path.append(str(part))
    return nodes, path


def _depth(root: Node, location: Sequence[str | int]) -> int:
    """How many parts of *location* lead to the value itself; the rest names a union member that refused it."""
    whole = len(_walk(root, location)[0])
    return next(end for end in range(len(location) + 1) if len(_walk(root, location[:end])[0]) == whole)


def _without_shallow_members(root: Node, details: Sequence[Any]) -> list[Any]:
    """Leave out errors that a union member has with a value as such, where another member errs inside that value."""
    places = [_place(root, detail) for detail in details]
    deeper = {place[:end] for place in places for end in range(len(place))}
    return [
        detail
        for detail, place in zip(details, places, strict=True)
        if place not in deeper or detail["type"] in _CUSTOM | {"extra_forbidden", "missing"}
    ]


def _place(root: Node, detail: Any) -> tuple[str, ...]:
    missing = (str(detail["loc"][-1]),) if detail["type"] == "missing" else ()
    return (*_walk(root, detail["loc"])[1], *missing)


def shown(node: Node) -> str:
    """The value of *node* for a message: a text in quotes, a collection by its kind."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, str):
        return f"'{escape(value)}'"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)
