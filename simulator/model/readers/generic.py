"""The reader of last resort: a decoder of the common kind, by the field names that most families share."""

from __future__ import annotations

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.readers import llama

MODEL_TYPES = ()


def read(fields: Fields) -> Architecture:
    """A dense decoder."""
    return llama.read(fields)
