"""Reading of a Hugging Face `config.json` as it is: plain JSON in, an architecture out, no code of the model run.

The file of `readers/` whose `MODEL_TYPES` names the file's `model_type` reads it. A type that none names is read by
the generic reader, which says so in the architecture's approximations. Fields that nobody understood are listed.
"""

from __future__ import annotations

import json
import pkgutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path

from simulator.model import readers
from simulator.model.architecture import Architecture
from simulator.model.fields import Fields, Findings
from simulator.model.key_lines import key_lines
from simulator.model.readers import generic

Reader = Callable[[Fields], Architecture]
_LARGEST_FILE_BYTES = 16 * 2**20


class ConfigError(ValueError):
    """A `config.json` that cannot be read as a model; the message lists every problem, one a line."""


def read_architecture(path: Path) -> Architecture:
    """The model that the `config.json` at *path* (or in the folder *path*) describes.

    Raise :exc:`ConfigError` with all problems where the file is not one.
    """
    path = path / "config.json" if path.is_dir() else path
    text = _text(path)
    values = _object(path, text)
    findings = Findings(_repeated(text))
    fields = Fields(values, findings)
    model_type = fields.text("model_type")
    architecture = _read(fields, model_type) if model_type else None
    if findings.problems or architecture is None:
        raise ConfigError("\n".join([*_located(path, text, findings.problems), *_hint(model_type)]))
    return replace(
        architecture, approximations=tuple(findings.approximations), unknown_fields=tuple(sorted(fields.unread()))
    )


def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that has a reader, sorted."""
    return tuple(sorted(_readers()))


@cache
def _readers() -> dict[str, Reader]:
    names = [module.name for module in pkgutil.iter_modules(readers.__path__)]
    modules = [import_module(f"{readers.__name__}.{name}") for name in names]
    return {model_type: module.read for module in modules for model_type in module.MODEL_TYPES}


def _read(fields: Fields, model_type: str) -> Architecture:
    reader = _readers().get(model_type)
    if reader is not None:
        return reader(fields)
    fields.approximate(
        f"No reader knows the model_type {model_type[:60]!r}; it is read as a decoder of the common kind,"
        " by the field names that most families share."
    )
    return generic.read(fields)


def _hint(model_type: str) -> list[str]:
    known = known_model_types()
    if model_type in known:
        return []
    near = get_close_matches(model_type, known, n=1)
    nearest = [f"the nearest known model_type is {near[0]!r}"] if near else []
    return [*nearest, f"known model types: {', '.join(known)}"]


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {_LARGEST_FILE_BYTES} bytes, which no config.json is")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _object(path: Path, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a config: its brackets are nested too deep to read") from None
    except ValueError:
        raise ConfigError(f"{path}: not a config: it holds a number of thousands of digits") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path}: found a JSON {_json_kind(found)}, expected an object with model_type and its fields"
        )
    return found


def _json_kind(value: object) -> str:
    kinds = {list: "list", str: "string", bool: "truth value", type(None): "null"}
    return kinds.get(type(value), "number")


def _located(path: Path, text: str, problems: list[tuple[tuple[str, ...], str]]) -> list[str]:
    """Each problem with the line of its field, or of the object where it is missing."""
    lines: dict[tuple[str, ...], int] = {(): 1, **dict(key_lines(text))}
    return [
        f"{path}:{lines.get(where) or lines.get(where[:-1], 1)}: {'.'.join(where)}: {message}"
        for where, message in problems
    ]


def _repeated(text: str) -> list[tuple[tuple[str, ...], str]]:
    """A problem for each key that its object holds twice, since readers of JSON disagree on which counts."""
    times = Counter(where for where, _ in key_lines(text))
    return [(where, f"stands {count} times in one object") for where, count in times.items() if count > 1]
