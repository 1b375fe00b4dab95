"""The program `rackcast`: its commands, each in the file of its name."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.calibrate import calibrate
from simulator.cli.compare import compare
from simulator.cli.fit import fit
from simulator.cli.model import model
from simulator.cli.plan import plan
from simulator.cli.run import run as run_scenario
from simulator.cli.schema import schema
from simulator.cli.topo import topo
from simulator.cli.trace import trace
from simulator.cli.validate import validate
from simulator.version import __version__

app = typer.Typer(
    name="rackcast", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command("fit")(fit)
app.command("run")(run_scenario)
app.command("compare")(compare)
app.command("plan")(plan)
app.command("model")(model)
app.command("trace")(trace)
app.command("validate")(validate)
app.command("calibrate")(calibrate)
app.command("topo")(topo)
app.command("schema")(schema)


def run() -> None:
    """Entry point of the installed program."""
    app()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rackcast {__version__}")
        raise typer.Exit


@app.callback()
def _rackcast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A forecast for a rack: will a large-model job fit, how fast will it run, what limits it, what to change.

    Exit status: 0 done, 1 does not fit (only with fit), 2 bad input, 3 fault of the program.
    """
