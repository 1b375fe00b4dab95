"""The flags are part of the outside contract: a new one is a decision, so it has to be written down here too."""

import typer.main

from simulator.cli.main import app

FLAGS = {
    "rackcast": {"--version", "--help"},
    "fit": {"SCENARIO", "--set", "--json", "--help"},
    "run": {"SCENARIO", "--set", "--json", "--out", "--no-fold", "--help"},
    "compare": {"SCENARIO...", "--over", "--set", "--png", "--json", "--help"},
    "plan": {
        *("SCENARIO", "--set", "--json", "--out", "--help"),
        *("--over", "--simulate", "--explain", "--backend", "--jobs"),
    },
    "model": {"CONFIG_JSON", "--json", "--help"},
    "validate": {"[CASES]", "--json", "--help"},
    "trace": {"FILE", "--ep", "--out", "--json", "--help"},
    "calibrate": {"--quick", "--output", "--json", "--help"},
    "topo": {"DUMP", "--accelerator", "--out", "--astra", "--png", "--json", "--help"},
    "schema": {"KIND", "--json", "--help"},
}


def test_the_flags_are_these() -> None:
    program = typer.main.get_command(app)
    found = {"rackcast": program, **program.commands}  # type: ignore[attr-defined]
    assert {name: _flags(command) for name, command in found.items()} == FLAGS


def _flags(command: object) -> set[str]:
    context = typer.Context(command)  # type: ignore[arg-type]
    flags: set[str] = set()
    for parameter in command.get_params(context):  # type: ignore[attr-defined]
        options = [*parameter.opts, *parameter.secondary_opts]
        flags.update(options if options[0].startswith("-") else [parameter.metavar])
    return flags
