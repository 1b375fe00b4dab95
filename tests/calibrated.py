"""The shipped points of H200 as a machine would tell them, for tests of calibration without a GPU."""

from dataclasses import asdict, replace

from simulator.calibration.plan import tables
from simulator.calibration.store import read, read_all
from simulator.shipped import shipped

POINTS = shipped("hardware_profiles", "measured", "h200-sxm", "points")
MACHINE = read(POINTS / "collectives.parquet").machine
STORED = {stored.name: stored for stored in read_all(POINTS)}


def told(asked, *_):
    """What the measuring processes say of the tables *asked* for."""
    for table in asked:
        for point in STORED[table.name].points:
            yield {"table": table.name, "point": asdict(point)}
        for shape in table.shapes:
            yield {"table": table.name, "shape_done": shape}
        yield {"table": table.name, "finished": {"wall_s": 1.0, "clocks": {"sm_mhz": [1980.0] * 3}}}


def thinned(*names, keep=6):
    """Some tables, the larger ones with one of *keep* points."""
    some = (STORED[name] for name in names)
    return tuple(replace(s, points=s.points[::keep] if len(s.points) > 300 else s.points) for s in some)


def plan(gpus=2):
    return tables(quick=True, gpus=gpus)
