"""Which algorithms a summary names; 16 H200 on two nodes."""

from small_jobs import Small

from simulator.forecast.forecast import forecast


def taken(small: Small, *overrides: str) -> dict:
    found = forecast(*small("dense", *overrides)).summary["collectives"]
    return {(one["axis"], one["operation"]): one["algorithms"] for one in found}


def test_gathers_between_nodes_go_by_the_protocols_that_end_first(small: Small) -> None:
    found = taken(small)
    assert set(found) == {("dp_shard", "all_gather"), ("dp_shard", "reduce_scatter")}
    assert all(name.startswith("ring ") for names in found.values() for name in names)


def test_inside_a_node_it_is_what_was_timed(small: Small) -> None:
    found = taken(small, "parallel={dp_replicate: 2, dp_shard: 8}")
    assert found["dp_shard", "all_gather"] == ["timed"]
    assert "timed" not in found["dp_replicate", "all_reduce"]
