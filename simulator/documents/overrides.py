"""Overrides from the command line: `path.to.key=value` changes one value of a document before it is checked.

The value reads as YAML, so `8`, `true`, `[attention, mlp]` and `{rank: 16}` mean what they mean in the file. Mappings
on the way that the file leaves out are added; whether the path is known is for the model to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.documents.problem import Problem, escape, nearest
from simulator.documents.scalar import check_text
from simulator.documents.tree import MAX_DEPTH, Node, Unreadable, read_tree


def apply(root: Node, overrides: Sequence[str]) -> tuple[Node, list[Problem]]:
    """*root* with each of *overrides* applied in turn, and the problems of those that cannot be."""
    problems: list[Problem] = []
    for override in overrides:
        try:
            root = _apply_one(root, override, problems)
        except Unreadable as error:
            problems.append(error.problem)
    return root, problems


def _apply_one(root: Node, override: str, problems: list[Problem]) -> Node:
    source = f"--set {escape(override, 80)}"
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) > MAX_DEPTH:
        raise Unreadable(Problem(source, None, "", "expected path.to.key=value, such as parallel.ep=64"))
    try:
        check_text(path)
    except ValueError as error:
        raise Unreadable(Problem(source, None, "", str(error))) from None
    if text.strip():
        node, found = read_tree(text, source, numbered=False)
        problems += [replace(problem, where=path.strip()) for problem in found]
    else:
        node = Node(None, source, None)
    return _put(root, keys, 0, node)


def _put(parent: Node, keys: list[str], depth: int, value: Node) -> Node:
    """*parent* with *value* at `keys[depth:]`. Nodes may be shared by aliases, so the way down is copied."""
    if depth == len(keys):
        return value
    key = keys[depth]
    if isinstance(parent.value, dict) or parent.value is None:
        entries = dict(parent.value or {})
        child = entries.get(key, Node(None, value.source, None))
        entries[key] = _put(child, keys, depth + 1, value)
        return replace(parent, value=entries)
    if isinstance(parent.value, tuple):
        items = list(parent.value)
        numbers = [str(number) for number in range(len(items))]
        if key not in numbers:
            raise _no_way(value, keys, depth, f"is a list; {nearest(key, numbers)}")
        items[int(key)] = _put(items[int(key)], keys, depth + 1, value)
        return replace(parent, value=tuple(items))
    raise _no_way(value, keys, depth, f"is the value {escape(str(parent.value))!r}, which has no keys")


def _no_way(value: Node, keys: list[str], depth: int, message: str) -> Unreadable:
    whole = ".".join(keys)
    return Unreadable(
        Problem(value.source, None, whole, f"unknown path: {'.'.join(keys[:depth]) or 'the root'} {message}")
    )
