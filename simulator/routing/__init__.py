"""Expert-routing traces: reading, statistics, resampling, synthesis, balancing, and the rows that they mean."""

from simulator.routing.error import RoutingError
from simulator.routing.library import load_routing
from simulator.routing.outcome import Outcome, Setting
from simulator.routing.placement import Moves, Placement, contiguous, moves
from simulator.routing.policies import apply_policy, describe, policy_names
from simulator.routing.reading import open_recording, read_table, read_trace
from simulator.routing.resample import resample
from simulator.routing.rows import rows_per_expert, source_rows
from simulator.routing.synthetic import synthesise
from simulator.routing.table import RoutingTable
from simulator.routing.trace import Trace

__all__ = [
    "Moves",
    "Outcome",
    "Placement",
    "RoutingError",
    "RoutingTable",
    "Setting",
    "Trace",
    "apply_policy",
    "contiguous",
    "describe",
    "load_routing",
    "moves",
    "open_recording",
    "policy_names",
    "read_table",
    "read_trace",
    "resample",
    "rows_per_expert",
    "source_rows",
    "synthesise",
]
