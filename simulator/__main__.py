"""`python -m simulator` is the program `rackcast`."""

from simulator.cli.main import run

run()
