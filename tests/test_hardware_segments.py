from pathlib import Path

import pytest

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.hardware.cluster import segmented
from simulator.hardware.library import build_cluster
from tests.small_jobs import Small

RACKS = ("gb200-nvl72", "nvl72-rail-400g")


@pytest.mark.parametrize(
    ("accelerators", "used"),
    [
        (72, 72),  # one rack
        (144, 72),
        (128, 64),
        (256, 64),
        (1024, 64),
        (192, 64),
        (240, 60),
        # 116 = 29 trays: no part of 9 trays and more shares them out evenly.
        (116, 72),
    ],
)
def test_racks_are_shared_evenly_from_half_of_one_on(accelerators: int, used: int) -> None:
    cluster = build_cluster(*RACKS, accelerators, Path())
    assert cluster.scale_up_domain == used
    assert [level.name for level in cluster.levels[:2]] == ["scale_up", "super_node"]


def test_nodes_of_one_domain_are_no_segments() -> None:
    assert build_cluster("hgx-h200", "rail-fat-tree-400g", 24, Path()).scale_up_domain == 8


def test_segments_asked_for_bound_the_fast_links() -> None:
    cluster = build_cluster(*RACKS, 256, Path())
    assert [level.size for level in segmented(cluster, 8).levels] == [4, 32, 288]
    assert [level.size for level in segmented(cluster, 16).levels] == [4, 64, 288]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("cluster.node=gb200-nvl72", "cluster.fabric=nvl72-rail-400g", "cluster.segment_nodes=18"),
            "found 18; allowed: a divisor of 16 / 4 = 4 nodes, of up to 18 in a scale-up domain; nearest: 4",
        ),
        (("cluster.segment_nodes=2",), "found 2, but scale-up links of HGX H200 end at the node; leave it out"),
    ],
)
def test_segments_that_cannot_be_are_refused(small: Small, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refused) as refused:
        assemble_job(*small("dense", *settings))
    assert said in str(refused.value)
    assert "cluster.segment_nodes" in str(refused.value)
