"""Compute units that transfers occupy: by hand, and beside kernels timed during collectives of two H200."""

from pathlib import Path

import pytest

from simulator.calibration.store import read
from simulator.hardware.collective import Formula
from simulator.hardware.library import build_cluster
from simulator.hardware.occupancy import share_of_units, share_taken
from simulator.shipped import shipped


@pytest.mark.parametrize(
    ("node", "occupant", "share"),
    [
        ("hgx-h100", "collective", 24 / 132),
        ("hgx-h100", "in_switch", 16 / 132),
        ("hgx-h200", "exchange", 32 / 132),
        ("hgx-h200", "between_nodes", 16 / 132),
        ("hgx-h200", "send_between_nodes", 2 / 132),
        ("hgx-a100", "in_switch", 24 / 108),
        ("atlas-910b", "exchange", 0.2),
    ],
)
def test_channels_over_units(node: str, occupant: str, share: float) -> None:
    assert share_taken(build_cluster(node, "single-node", 8, Path()), occupant) == pytest.approx(share)


def test_units_that_are_not_known() -> None:
    assert share_of_units(build_cluster("hgx-h200", "single-node", 8, Path()), 20) == pytest.approx(20 / 132)
    assert share_of_units(build_cluster("atlas-950", "single-node", 8, Path()), 20) == 0.2


@pytest.mark.parametrize(("ranks", "reduces"), [(2, False), (4, False), (6, True), (8, True)])
def test_the_switch_reduces_for_as_many_ranks_as_were_timed_so(ranks: int, reduces: bool) -> None:
    collective = build_cluster("hgx-h100", "single-node", 8, Path()).node.scale_up.collectives["all_reduce"]
    assert collective.in_switch([ranks]).tolist() == [reduces]
    assert not isinstance(collective, Formula)


def test_kernels_beside_collectives_of_two_h200() -> None:
    stored = read(shipped("hardware_profiles", "measured", "h200-sxm", "points", "interference.parquet"))
    seconds = {point.name: point.seconds for point in stored.points}
    cluster = build_cluster("hgx-h200", "single-node", 2, Path())
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        share = share_taken(cluster, "exchange" if operation == "all_to_all" else "collective")
        for kernel, off in (("gemm 8192x8192x8192", 0.04), ("attention 32x8192x128", 0.07)):
            lost = 1 - seconds[f"{kernel} beside alone"] / seconds[f"{kernel} beside {operation}"]
            assert lost == pytest.approx(share, abs=off)
        # Memory bounds these, not the units.
        for kernel in ("add 64Mi", "cast 64Mi"):
            lost = 1 - seconds[f"{kernel} beside alone"] / seconds[f"{kernel} beside {operation}"]
            assert lost == pytest.approx(share, abs=0.07)
