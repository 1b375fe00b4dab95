"""A YAML document as a tree of values that remember their lines, built from ruamel's parser events.

Building from events, one at a time, keeps hostile input cheap: nesting, the number of values and what aliases expand
to are counted before anything is constructed, and no tag ever names a Python object. Aliases are shared nodes. Merge
keys (`<<`) and explicit tags are refused: a scenario says what it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.reader import ReaderError

from simulator.documents.problem import Problem, escape
from simulator.documents.scalar import Scalar, check_text, resolve

MAX_DEPTH = 64
MAX_VALUES = 100_000
_CHARACTERS_PER_VALUE = 100
"""A long text counts as one more value for each so many characters, so aliases of long texts are bounded too."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place. A mapping's entries carry the line of their key."""

    value: dict[str, Node] | tuple[Node, ...] | Scalar
    source: str
    line: int | None
    weight: int = 1
    """How many values it expands to."""
    refused: bool = False
    """Whether a problem was told about it already; its value then only holds the place."""

    def plain(self) -> Any:
        """The value as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


class Unreadable(Exception):  # noqa: N818, as InvalidDocument
    """The document is too broken, or too big, to go on with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem)


def read_tree(text: str, source: str, *, numbered: bool = True) -> tuple[Node, list[Problem]]:
    """The one document of *text*, and the problems that do not keep the rest from being checked (duplicate keys, ...).

    *source* names the text in problems; *numbered* tells whether they give lines. Raise :exc:`Unreadable`.
    """
    builder = _Builder(text, source, numbered)
    return builder.document(), builder.problems


class _Builder:
    """Turns events into nodes. Recursion is safe: the depth is limited."""

    def __init__(self, text: str, source: str, numbered: bool) -> None:
        self.source = source
        self._text = text
        self.numbered = numbered
        self.problems: list[Problem] = []
        self._anchors: dict[str, Node] = {}
        self._parsed = 0
        self._line = 1
        self._events: Iterator[Any] = iter(YAML(typ="safe", pure=True).parse(text))

    def document(self) -> Node:
        """The root. An empty stream, or a second document in it, is refused."""
        root: Node | None = None
        while (event := self._next()) is not None:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise self._stop("found a second document; allowed: one document a file")
                root = self._node(self._next(), "", 0)
            elif isinstance(event, DocumentEndEvent):
                self._anchors.clear()
        if root is None:
            raise Unreadable(Problem(self.source, None, "", "the file is empty; expected a mapping"))
        return root

    def _next(self) -> Any:
        try:
            event = next(self._events, None)
        except MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except ReaderError as error:
            self._line = self._text.count("\n", 0, error.position) + 1
            raise self._stop(f"found the control character U+{error.character:04X}, which is not allowed") from None
        except (YAMLError, ValueError, OverflowError) as error:
            # ruamel lets ValueError and OverflowError out of escapes such as "\UFFFFFFFF".
            raise self._stop(f"not YAML: {escape(str(error).splitlines()[0])}") from None
        if event is not None and event.start_mark is not None:
            self._line = event.start_mark.line + 1
        return event

    def _node(self, event: Any, where: str, depth: int) -> Node:
        line = self._line
        if depth > MAX_DEPTH:
            raise self._stop(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, AliasEvent):
            return self._alias(event, where)
        if event.tag is not None:
            self._problem(line, where, f"found the tag {_short(str(event.tag))}; tags are not read")
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, where)
        elif isinstance(event, MappingStartEvent):
            node = self._mapping(where, depth)
        else:
            node = self._sequence(where, depth)
        self._limit(node.weight)
        node = replace(node, refused=True) if event.tag is not None else node
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: NodeEvent, where: str) -> Node:
        if event.anchor not in self._anchors:
            raise self._stop(
                f"{where}: found the alias *{escape(event.anchor)}, whose anchor is not complete before it"
            )
        return self._anchors[event.anchor]

    def _scalar(self, event: ScalarEvent, where: str) -> Node:
        self._parsed += 1
        self._limit(self._parsed)
        try:
            value = check_text(event.value) if event.style else resolve(check_text(event.value))
        except ValueError as error:
            self._problem(self._line, where, str(error))
            return replace(self._at(None, self._line, 1), refused=True)
        return self._at(value, self._line, 1 + len(event.value) // _CHARACTERS_PER_VALUE)

    def _sequence(self, where: str, depth: int) -> Node:
        line, weight, items = self._line, 1, list[Node]()
        while not isinstance(event := self._next(), CollectionEndEvent):
            items.append(self._node(event, _join(where, str(len(items))), depth + 1))
            weight += items[-1].weight
            self._limit(weight)
        return self._at(tuple(items), line, weight)

    def _mapping(self, where: str, depth: int) -> Node:
        line, weight, entries = self._line, 1, dict[str, Node]()
        while not isinstance(event := self._next(), CollectionEndEvent):
            key_line, key = self._line, self._key(event, where)
            path = _join(where, key)
            node = self._node(self._next(), path, depth + 1)
            if key == "<<":
                self._problem(key_line, path, "merge keys are not read; write the keys out")
            elif key in entries:
                first = f", first at line {entries[key].line}" if self.numbered else ""
                self._problem(key_line, path, f"duplicate key{first}")
            else:
                entries[key] = replace(node, line=key_line if self.numbered else None)
            weight += 1 + node.weight
            self._limit(weight)
        return self._at(entries, line, weight)

    def _key(self, event: Any, where: str) -> str:
        if not isinstance(event, ScalarEvent):
            raise self._stop(f"found a key that is no word{f' in {where}' if where else ''}")
        refused = self._scalar(event, where).refused
        return escape(event.value, None) if refused else str(event.value)

    def _at(self, value: dict[str, Node] | tuple[Node, ...] | Scalar, line: int, weight: int) -> Node:
        return Node(value, self.source, line if self.numbered else None, weight)

    def _limit(self, weight: int) -> None:
        if weight > MAX_VALUES:
            raise self._stop(f"expands to more than {MAX_VALUES:,} values; is it an alias bomb?")

    def _problem(self, line: int, where: str, message: str) -> None:
        self.problems.append(Problem(self.source, line if self.numbered else None, where, message))

    def _stop(self, message: str) -> Unreadable:
        return Unreadable(Problem(self.source, self._line if self.numbered else None, "", message))

    def _syntax_error(self, error: MarkedYAMLError) -> Unreadable:
        mark = error.problem_mark or error.context_mark
        self._line = mark.line + 1 if mark else self._line
        column = f" at column {mark.column + 1}" if mark else ""
        context = f" {error.context}" if error.context else ""
        return self._stop(f"not YAML{column}: {escape(str(error.problem), 120)}{escape(context)}")


def _short(tag: str) -> str:
    return escape(tag.replace("tag:yaml.org,2002:", "!!"))


def _join(where: str, key: str) -> str:
    return f"{where}.{escape(key)}" if where else escape(key)
