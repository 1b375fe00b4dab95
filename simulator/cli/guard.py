"""How a command ends: its answer on standard output, everything else on standard error, and the exit status.

Bad input gives one line a problem and never a traceback. A fault of the program gives one line too; its traceback goes
to a file that the line names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

DONE, DOES_NOT_FIT, BAD_INPUT, FAULT = 0, 1, 2, 3
_INTERRUPTED = 130
_PIPE_CLOSED = 141
"""What a shell reports for a program that a signal ended: 128 + SIGINT, 128 + SIGPIPE."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found out."""

    value: dict[str, Any]
    """The object that `--json` prints."""
    screen: Callable[[], RenderableType | str]
    """What a person reads instead."""
    status: int = DONE


def conclude(body: Callable[[], Answer], as_json: bool) -> NoReturn:
    """Run *body*, print its answer or what went wrong, and leave with the exit status."""
    try:
        text, status = _outcome(body, as_json)
        typer.echo(text, nl=False)
    except KeyboardInterrupt:
        say("interrupted")
        status = _INTERRUPTED
    except BrokenPipeError:
        _silence()
        status = _PIPE_CLOSED
    except OSError as error:
        _silence()
        say(f"standard output cannot be written: {error.strerror}")
        status = BAD_INPUT
    raise typer.Exit(status)


def say(message: str) -> None:
    """*message* on standard error, as one line."""
    from simulator.documents.problem import escape

    typer.echo(escape(message, None), err=True)


def _outcome(body: Callable[[], Answer], as_json: bool) -> tuple[str, int]:
    """What standard output gets, and the exit status."""
    try:
        answer = body()
        return _object(answer.value) if as_json else _readable(answer.screen()), answer.status
    except Exception as error:  # noqa: BLE001, the outermost place, where no user should see a traceback
        return _failed(error, as_json)


def _object(value: dict[str, Any]) -> str:
    import json

    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _readable(screen: RenderableType | str) -> str:
    if isinstance(screen, str):
        return f"{screen}\n"
    from rich.console import Console

    console = Console()
    with console.capture() as capture:
        console.print(screen)
    return capture.get()


def _silence() -> None:
    """Python flushes standard output once more when it exits, and would complain about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception, as_json: bool) -> tuple[str, int]:
    problems = _bad_input(error)
    status = FAULT if problems is None else BAD_INPUT
    if problems is None:
        problems = [{"message": _fault(error)}]
    for problem in problems:
        say(problem.get("text", problem["message"]))
    keys = ("file", "line", "where", "message")
    listed = [{key: problem[key] for key in keys if problem.get(key)} for problem in problems]
    kind = "bad input" if status == BAD_INPUT else "fault"
    return _object({"error": kind, "problems": listed}) if as_json else "", status


def _bad_input(error: Exception) -> list[dict[str, Any]] | None:
    """The problems of input that *error* tells of, or None where *error* is a fault of the program."""
    from simulator.documents import InvalidDocument
    from simulator.forecast.errors import Refused
    from simulator.model.config import ConfigError

    if isinstance(error, InvalidDocument):
        return [
            {"file": p.file, "line": p.line, "where": p.where, "message": p.message, "text": str(p)}
            for p in error.problems
        ]
    if isinstance(error, Refused | ConfigError):
        return [{"message": line} for line in str(error).splitlines()]
    if isinstance(error, OSError):
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return [{"message": named}]
    return None


def _fault(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="rackcast-fault-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"fault in rackcast: {what[:200]}; please report it with {file.name}"
