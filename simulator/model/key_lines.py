"""Where each key of a JSON text stands, so that a problem can name its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|\n')
_COLON = re.compile(r"\s*:")


def key_lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path and line of every key that stands in objects alone, in order; keys inside lists are passed over.

    *text* is valid JSON.
    """
    line, lists = 1, 0
    path: list[str] = []
    key = ""
    for token in _TOKEN.finditer(text):
        symbol = token[0]
        if symbol == "\n":
            line += 1
        elif symbol in "[]":
            lists += 1 if symbol == "[" else -1
        elif lists:
            continue
        elif symbol == "{":
            path.append(key)
        elif symbol == "}":
            path.pop()
        elif _COLON.match(text, token.end()):
            key = json.loads(symbol)
            yield (*path[1:], key), line
