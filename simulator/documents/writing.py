"""Documents written as YAML that people can read and change."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

WIDTH = 120


def dumped(tree: Mapping[str, Any]) -> str:
    """*tree* in block style, with innermost lists on a line."""
    writer, out = YAML(), StringIO()
    writer.default_flow_style = None
    writer.width = WIDTH
    writer.dump(_plain(tree), out)
    return out.getvalue()


def _plain(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _plain(value) for key, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
