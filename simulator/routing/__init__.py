"""Expert-routing traces: reading, resampling, synthesis, and the rows they mean for experts and ranks."""

from simulator.routing.error import RoutingError
from simulator.routing.library import load_routing
from simulator.routing.reading import read_table
from simulator.routing.resample import resample
from simulator.routing.rows import rows_per_expert, source_rows
from simulator.routing.synthetic import synthesise
from simulator.routing.table import RoutingTable

__all__ = [
    "RoutingError",
    "RoutingTable",
    "load_routing",
    "read_table",
    "resample",
    "rows_per_expert",
    "source_rows",
    "synthesise",
]
