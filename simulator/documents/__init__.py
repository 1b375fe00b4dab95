"""Documents: YAML files read with line numbers, changed by overrides, checked against a pydantic model, and written."""

from simulator.documents.load import Document, in_order, keys, load, read
from simulator.documents.problem import InvalidDocument, Problem
from simulator.documents.writing import dumped

__all__ = ["Document", "InvalidDocument", "Problem", "dumped", "in_order", "keys", "load", "read"]
