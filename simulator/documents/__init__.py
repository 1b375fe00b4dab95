"""Documents: YAML files read with line numbers, changed by overrides, checked against a pydantic model."""

from simulator.documents.load import load
from simulator.documents.problem import InvalidDocument, Problem

__all__ = ["InvalidDocument", "Problem", "load"]
