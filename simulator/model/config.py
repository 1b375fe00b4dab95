"""Reading of a Hugging Face `config.json` as it is: plain JSON in, an architecture out, no code of the model run.

The file of `readers/` whose `MODEL_TYPES` names the file's `model_type` reads it. A type that none names is read by
the generic reader, which says so in the architecture's approximations. Fields that nobody understood are listed.
"""

from __future__ import annotations

import json
import pkgutil
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from simulator.documents.problem import InvalidDocument, Problem, escape, nearest
from simulator.model import readers
from simulator.model.architecture import Architecture
from simulator.model.fields import Fields, Findings
from simulator.model.key_lines import key_lines
from simulator.model.readers import generic

Reader = Callable[[Fields], Architecture]
LARGEST_FILE_BYTES = 16 * 2**20


class ConfigError(InvalidDocument):
    """A `config.json` that cannot be read as a model; it lists every problem, one a line."""


def read_architecture(path: Path) -> Architecture:
    """The model that the `config.json` at *path* (or in the folder *path*) describes.

    Raise :exc:`ConfigError` with all problems where the file is not one.
    """
    path, text = _text(path)
    values = _object(path, text)
    findings = Findings(_repeated(text))
    fields = Fields(values, findings)
    model_type = fields.text("model_type")
    architecture = _read(fields, model_type) if model_type else None
    if findings.problems or architecture is None:
        raise ConfigError(_problems(path, text, findings, model_type))
    return replace(
        architecture,
        approximations=tuple(findings.approximations),
        unknown_fields=tuple(escape(name) for name in sorted(fields.unread())),
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
        f"No reader knows the model_type '{escape(model_type)}'; it is read as a decoder of the common kind,"
        " by the field names that most families share."
    )
    return generic.read(fields)


def _text(path: Path) -> tuple[Path, str]:
    """The file meant by *path*, which may be its folder, and what it holds."""
    try:
        file = path / "config.json" if path.is_dir() else path
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _refused(file, "not a regular file")
        if status.st_size > LARGEST_FILE_BYTES:
            raise _refused(file, f"larger than {LARGEST_FILE_BYTES} bytes, which no config.json is")
        return file, file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise _refused(path, f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def _object(path: Path, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise _refused(path, f"not JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise _refused(path, "its brackets are nested too deep to read") from None
    except ValueError:
        raise _refused(path, "it holds a number of thousands of digits") from None
    if not isinstance(found, dict):
        raise _refused(path, f"found a JSON {_json_kind(found)}, expected an object with model_type and its fields")
    return found


def _refused(path: Path, message: str, line: int | None = None) -> ConfigError:
    return ConfigError([Problem(str(path), line, "", message)])


def _json_kind(value: object) -> str:
    kinds = {list: "list", str: "string", bool: "truth value", type(None): "null"}
    return kinds.get(type(value), "number")


def _repeated(text: str) -> list[tuple[tuple[str, ...], str]]:
    """A problem for each key that its object holds twice, since readers of JSON disagree on which counts."""
    times = Counter(where for where, _ in key_lines(text))
    return [(where, f"stands {count} times in one object") for where, count in times.items() if count > 1]


def _problems(path: Path, text: str, findings: Findings, model_type: str) -> list[Problem]:
    """Each problem with the line of its field, or of the object where it is missing, in order of line."""
    lines: dict[tuple[str, ...], int] = {(): 1, **dict(key_lines(text))}
    found = dict.fromkeys(findings.problems)
    if model_type not in _readers():
        message = f"no reader knows {escape(model_type)!r}: {nearest(model_type, known_model_types())}"
        found[("model_type",), message] = None
    placed = [(lines.get(where) or lines.get(where[:-1], 1), where, message) for where, message in found]
    return [
        Problem(str(path), line, ".".join(escape(name) for name in where), message)
        for line, where, message in sorted(placed, key=lambda place: place[0])
    ]
