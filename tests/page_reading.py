"""What a page says, read as a program reads it: figures of tables by key, elements by id, what it would load."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.figures: dict[str, dict[str, list[float]]] = {}
        """Values of a row's `data` elements, by class of the table and key of the row."""
        self.of_id: dict[str, list[float]] = {}
        """Values of the `data` elements within an element that has an id."""
        self.words: list[str] = []
        self.explained: dict[str, str] = {}
        self.loads: list[str] = []
        """Values of attributes that name a resource or a place to go to."""
        self.headers: dict[str, str] = {}
        """Contents of `meta http-equiv`."""
        self.plots: dict[str, Any] = {}
        self.scripts = 0
        self._table, self._row, self._id, self._plot, self._abbr = "", "", "", "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.loads += [told[name] for name in ("src", "href", "action", "data") if name in told]
        self._id = told.get("id", self._id)
        if tag == "table":
            self._table = told.get("class", "").removesuffix(" bars")
        elif tag == "tr":
            self._row = told.get("data-key", "")
        elif tag == "data":
            value = float(told["value"])
            self.figures.setdefault(self._table, {}).setdefault(self._row, []).append(value)
            self.of_id.setdefault(self._id, []).append(value)
        elif tag == "meta" and "http-equiv" in told:
            self.headers[told["http-equiv"]] = told["content"]
        elif tag == "script":
            self.scripts += 1
            self._plot = told.get("data-plot", "")
        elif tag == "abbr":
            self._abbr = told["title"]

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._plot = ""

    def handle_data(self, data: str) -> None:
        if self._plot:
            self.plots[self._plot] = json.loads(data)
        elif self._abbr:
            self.explained[data] = self._abbr
            self._abbr = ""
        if len(data) < 10_000:
            self.words.append(data.strip())
