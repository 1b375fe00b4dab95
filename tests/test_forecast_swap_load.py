from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.task import Allocation, Collective, Task
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.forecast.swap_load import loads, overloads
from simulator.program.swap import Swap

RUNS = Path(__file__).parent / "validation" / "h200-swap"
MS = 1_000_000
OUT = "host link copy_out"


def work(layer: int, ms: int, phase: str = "forward") -> Task:
    return Task("work", "compute", "gemm", ms * MS, phase=phase, layer=layer, micro_batch=0)


def moved(stream: str, layer: int, ms: int, size: float, busy: dict[str, float], *taken: Allocation) -> Task:
    collective = Collective("x", np.array([0]), busy, wire_bytes=size)
    return Task(
        "x",
        stream,
        stream,
        ms * MS,
        collective=collective,
        allocates=taken,
        phase="forward",
        layer=layer,
        micro_batch=0,
    )


def out(layer: int, ms: int, size: float, busy: dict[str, float]) -> Task:
    return moved("copy_out", layer, ms, size, busy, Allocation(f"{layer}", "saved activations", size, tier="ddr"))


def test_a_layer_s_copies_are_set_against_its_work_and_what_else_uses_the_link() -> None:
    # Two layers: 10 ms of kernels and an exchange of 6, which uses the link for 4; one layer sends 1.1 GB, 20 ms.
    program = [work(0, 10), moved("all_to_all", 0, 6, 1e8, {OUT: 4 * MS})]
    program += [work(1, 10), moved("all_to_all", 1, 6, 1e8, {OUT: 4 * MS}), out(1, 20, 1.1e9, {OUT: 20 * MS})]
    (load,) = loads(program)
    assert (load.layer_bytes, load.copies_s, load.work_s, load.others_s) == (0.55e9, 0.010, 0.016, 0.004)
    assert load.hidden == pytest.approx(1.2)
    assert overloads([program], [Swap(host={"fc1": 0.5})]) == []


def test_what_asks_too_much_is_told_with_its_arithmetic_and_the_share_that_is_hidden() -> None:
    # 10 ms of work a layer, 2 of them with gathers on the link: 8 of 20 ms are hidden, so 0.4 of the share of 0.75.
    program = [work(0, 10), moved("fsdp_gather", 0, 9, 1e8, {OUT: 2 * MS}), out(0, 20, 1.1e9, {OUT: 20 * MS})]
    assert overloads([program], [Swap(host={"fc1": 0.75})]) == [
        "training.swap.operators: 1100 MB a layer leave in the forward pass, 20.00 ms at 55.0 GB/s over the card's "
        "link, of which its work leaves 10.00 - 2.00 = 8.00 ms: compute waits for the rest; hidden: fc1 0.3"
    ]


def test_the_link_that_is_filled_first_is_told() -> None:
    program = [work(0, 10), out(0, 20, 1e9, {OUT: 12 * MS, "host memory": 20 * MS})]
    (load,) = loads(program)
    assert (load.link, load.hidden) == ("host memory", 0.5)


def test_shards_and_gradients_are_others_on_the_link() -> None:
    shards = moved("copy_in", 0, 5, 1e8, {"host link copy_in": 5 * MS}, Allocation("s", "gathered parameters", 1e8))
    assert list(loads([work(0, 10), shards])) == []


def test_a_forecast_says_it_and_what_is_hidden_is_not_told(small: Small) -> None:
    # 16 MiB a layer at 55.06 GB/s are 0.30 ms out; the forward pass of a layer of 2048 tokens takes less.
    swap = forecast(*small("dense", "training.swap.operators={down: 1.0}")).summary["swap"]
    assert [told.split(",")[0] for told in swap["overloads"]][:1] == [
        "training.swap.operators: 17 MB a layer leave in the forward pass"
    ]
    program = lower(small("dense", "training.swap.operators={down: 1.0}"))
    (forward, _) = loads(program.tasks)
    assert forward.copies_s == pytest.approx(16 * 2**20 / 55.06e9, rel=1e-6)
    few = small("dense", "training.swap.operators={attention: 0.25}")
    assert forecast(*few).summary["swap"]["overloads"] == []


@pytest.mark.parametrize(
    ("run", "hidden"), [("attention-down", None), ("mlp", "gate 0.49, activation 0.49, down 0.49")]
)
def test_of_measured_swaps_those_that_stalled_are_told(run: str, hidden: str | None) -> None:
    # Measured: 0.480 s with attention and down, as long as with everything on the card; 0.630 s with all three.
    summary = forecast(*read_scenario(str(RUNS / f"llama8b-16l-swap-{run}-b1.yaml"), ())).summary
    assert [told.split("hidden: ")[1] for told in summary["swap"]["overloads"]] == ([hidden] if hidden else [])
    assert (summary["time"]["exposed_swap_s"] > 0.01) == bool(hidden)
