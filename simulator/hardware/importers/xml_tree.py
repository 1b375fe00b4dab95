"""XML read without trusting it: no entities of its own, nothing fetched, depth and size bounded.

A DOCTYPE that only names a DTD (hwloc writes one) is passed over; one that declares anything is refused, because
declared entities can expand without bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import BadDump, bad

MAX_ELEMENTS = 500_000
MAX_DEPTH = 100
_TAG = re.compile(r"<([A-Za-z][\w.-]{0,60})")


@dataclass(slots=True)
class Element:
    """One element with the line it begins in."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """An attribute's value."""
        return self.attributes.get(name, default)

    def need(self, name: str) -> str:
        """An attribute's value. Raise :exc:`BadDump` where there is none."""
        if name not in self.attributes:
            raise bad(f"<{escape(self.tag)}> has no attribute {name}", self.line)
        return self.attributes[name]


def root_tag(text: str) -> str | None:
    """The first element's name, without parsing the rest; None where the text does not begin like XML."""
    rest = text.lstrip()
    if not rest.startswith("<"):
        return None
    while (comment := rest.find("<!--")) >= 0 and not _TAG.search(rest, 0, comment):
        end = rest.find("-->", comment)
        rest = rest[end + 3 :] if end > 0 else ""
    found = _TAG.search(rest)
    return found[1] if found else None


def parse(text: str) -> Element:
    """The root element of *text*. Raise :exc:`BadDump` with the line for whatever is not plain XML."""
    reader = _Reader()
    try:
        reader.parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise _broken(error, reader.open) from None
    if reader.root is None:
        raise bad("has no element")
    return reader.root


def _broken(error: expat.ExpatError, still_open: list[Element]) -> BadDump:
    words = expat.ErrorString(error.code) or "not XML"
    if error.code == expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS] and still_open:
        inner = still_open[-1]
        return bad(f"ends inside <{escape(inner.tag)}> of line {inner.line}: the dump is cut off", error.lineno)
    return bad(f"not XML: {words}", error.lineno)


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.open: list[Element] = []
        self._count = 0
        # The text was decoded before; a declaration of another encoding does not hold any more.
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse
        self.parser.StartDoctypeDeclHandler = self._doctype

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        line = self.parser.CurrentLineNumber
        if self._count > MAX_ELEMENTS or len(self.open) >= MAX_DEPTH:
            raise bad(f"has more than {MAX_ELEMENTS:,} elements or {MAX_DEPTH} levels of nesting", line)
        element = Element(tag, attributes, line)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def _end(self, _tag: str) -> None:
        self.open.pop()

    def _text(self, text: str) -> None:
        if self.open:
            self.open[-1].text += text

    def _refuse(self, *_: Any) -> None:
        raise bad("declares entities, which are not expanded here", self.parser.CurrentLineNumber)

    def _doctype(self, _name: str, _system: str | None, _public: str | None, has_declarations: int) -> None:
        if has_declarations:
            raise bad("has a DOCTYPE with declarations of its own, which are not read", self.parser.CurrentLineNumber)
