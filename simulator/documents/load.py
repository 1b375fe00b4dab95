"""Reading a document file: the bytes, the tree, the overrides, the model, and every problem on the way at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Generic, cast

from pydantic import BaseModel

from simulator.documents import overrides as changes
from simulator.documents.content import read_bytes, refusal
from simulator.documents.problem import InvalidDocument, Problem
from simulator.documents.tree import Node, Unreadable, read_tree
from simulator.documents.validation import M, shown, validate

MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Document(Generic[M]):
    """A checked document that still knows where its values came from, for checks beyond the schema."""

    content: M
    root: Node

    def problem(self, where: str, message: str) -> Problem:
        """A problem with the value at the dotted path *where*; a value left to its default has its parent's line."""
        node = self.root
        for key in where.split("."):
            inner = node.value.get(key) if isinstance(node.value, dict) else None
            if inner is None:
                break
            node = inner
        return Problem(node.source, node.line, where, message)


def read(path: Path, model: type[M], overrides: Sequence[str] = ()) -> Document[M]:
    """As :func:`load`, keeping the places of the values."""
    with _told():
        return _document(read_text(path), str(path), model, overrides)


def keys(path: Path, overrides: Sequence[str] = ()) -> frozenset[str]:
    """The keys that the document *path* has at its top after *overrides*, which tell documents of two kinds apart.

    Only those of a mapping that can be read; what is wrong with it is for :func:`read` to say.
    """
    with _told():
        root, _ = _tree(read_text(path), str(path))
    if isinstance(root.value, dict):
        root, _ = changes.apply(root, overrides)
    return frozenset(root.value) if isinstance(root.value, dict) else frozenset()


def load(path: Path, model: type[M], overrides: Sequence[str] = ()) -> M:
    """The YAML 1.2 document *path* as *model*, after *overrides* such as "parallel.ep=64".

    A text is parsed once: a search for the best layout asks for the same profiles again and again. Raise
    :exc:`InvalidDocument` that lists all problems: of the file, its syntax, the overrides and the values.
    """
    with _told():
        return cast(M, _content(read_text(path), str(path), model, tuple(overrides)))


@contextmanager
def _told() -> Iterator[None]:
    """Turn what could not be read at all into an invalid document of one problem."""
    try:
        yield
    except Unreadable as error:
        raise InvalidDocument([error.problem]) from None


@lru_cache(maxsize=512)
def _content(text: str, source: str, model: type[BaseModel], overrides: tuple[str, ...]) -> BaseModel:
    """What the *text* of the file *source* says."""
    return _document(text, source, model, overrides).content


def _document(text: str, source: str, model: type[M], overrides: Sequence[str]) -> Document[M]:
    root, problems = _tree(text, source)
    if not isinstance(root.value, dict):
        found = f"found {shown(root)}, expected a mapping"
        raise InvalidDocument([*problems, Problem(source, root.line, "", found)])
    root, refused = changes.apply(root, overrides)
    content, invalid = validate(root, model)
    if content is None or problems or refused:
        raise InvalidDocument(in_order([*problems, *refused, *invalid]))
    return Document(content, root)


@lru_cache(maxsize=16)
def _tree(text: str, source: str) -> tuple[Node, list[Problem]]:
    """As :func:`read_tree`, once for all cases of a sweep."""
    return read_tree(text, source)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """*problems* by line, those without a line last."""
    return sorted(problems, key=lambda problem: (problem.line is None, problem.line or 0))


def read_text(path: Path) -> str:
    """The text of the file *path*, UTF-8 of at most :data:`MAX_FILE_BYTES`. Raise :exc:`Unreadable` otherwise."""
    content = read_bytes(path, MAX_FILE_BYTES)
    if b"\0" in content:
        raise refusal(path, "is a binary file, expected YAML text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"is not UTF-8: byte 0x{content[error.start]:02x}"
        raise Unreadable(Problem(str(path), line, "", found)) from None
