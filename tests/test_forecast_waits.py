from small_jobs import DEVICE_BOUND, Small

from simulator.forecast.forecast import forecast


def test_a_wait_for_a_copy_is_told_with_the_copy(small: Small) -> None:
    everything = "training.swap.operators={gate_up: 1.0, activation: 1.0, down: 1.0, attention: 1.0}"
    found = forecast(*small("dense", *DEVICE_BOUND, everything)).timeline
    waits = [(found.name[cause], task) for task, cause in enumerate(found.waited_for[:, 0].tolist()) if cause >= 0]
    assert {name for name, _ in waits} >= {"down out", "activation in"}
    for _, task in waits:
        assert found.stream[task] == "compute"
        assert found.end_ns[found.waited_for[task, 0], 0] <= found.start_ns[task, 0]


def test_where_copies_are_hidden_nothing_waits_for_them(small: Small) -> None:
    found = forecast(*small("dense", "training.swap.operators={o_proj: 0.25}")).timeline
    assert not [cause for cause in found.waited_for[:, 0].tolist() if cause >= 0 and "copy" in found.stream[cause]]
