"""Documents: YAML files read with line numbers, changed by overrides, checked against a pydantic model."""

from simulator.documents.load import Document, in_order, keys, load, read
from simulator.documents.problem import InvalidDocument, Problem

__all__ = ["Document", "InvalidDocument", "Problem", "in_order", "keys", "load", "read"]
