from pathlib import Path

from small_jobs import write_small

from simulator.forecast.idle import idle_settings


def test_ways_of_splitting_what_is_not_split_are_told(tmp_path: Path) -> None:
    ways = ("training.context_parallel=ring", "training.sequence_parallel=false")
    scenario, _ = write_small(tmp_path)("dense", *ways)
    assert list(idle_settings(scenario)) == [
        "training.context_parallel: ring changes nothing, since cp is 1",
        "training.sequence_parallel: false changes nothing, since tp is 1",
    ]
    split, _ = write_small(tmp_path)("dense", "parallel={cp: 2, tp: 2, dp_shard: 4}", *ways)
    assert not list(idle_settings(split))
