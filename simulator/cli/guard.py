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
        answer = body()
        _print(answer, as_json)
        status = answer.status
    except KeyboardInterrupt:
        say("interrupted")
        status = _INTERRUPTED
    except BrokenPipeError:
        _silence()
        status = _PIPE_CLOSED
    except Exception as error:  # noqa: BLE001, the outermost place, where no user should see a traceback
        status = _failed(error, as_json)
    raise typer.Exit(status)


def say(message: str) -> None:
    """*message* on standard error, as one line."""
    from simulator.documents.problem import escape

    typer.echo(escape(message, None), err=True)


def _print(answer: Answer, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(answer.value, indent=2, allow_nan=False))
    elif isinstance(readable := answer.screen(), str):
        typer.echo(readable)
    else:
        from rich.console import Console

        console = Console()
        with console.capture() as capture:
            console.print(readable)
        typer.echo(capture.get(), nl=False)
    sys.stdout.flush()


def _silence() -> None:
    """Python flushes standard output once more when it exits, and would complain about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception, as_json: bool) -> int:
    problems = _bad_input(error)
    status = FAULT if problems is None else BAD_INPUT
    if problems is None:
        problems = [{"message": _fault(error)}]
    for problem in problems:
        say(problem.get("text", problem["message"]))
    if as_json:
        import json

        keys = ("file", "line", "where", "message")
        listed = [{key: problem[key] for key in keys if problem.get(key)} for problem in problems]
        typer.echo(json.dumps({"error": "bad input" if status == BAD_INPUT else "fault", "problems": listed}, indent=2))
    return status


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
