"""Layers shared among stages by what stages cost: times and bytes of a made-up model, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_jobs import write_small

from simulator.forecast.fitting import changed
from simulator.forecast.forecast import forecast
from simulator.planner.candidates import settings_of
from simulator.planner.orders import Order
from simulator.planner.plan import prepare
from simulator.planner.sharing import Held, cuts, share
from simulator.planner.splits import NO_OVERLAP, SCHEDULES

PLENTY = 1e9
LONG = ("cluster.accelerators=8", "parallel.dp_shard=8", "training.sequence_length=8192")


def _shared(
    order: Order,
    *,
    layers: int,
    loss_s: float,
    room_bytes: float = PLENTY,
    alive: list[list[float]] | None = None,
    host_s: float = 0.0,
) -> tuple[int, ...]:
    """Of layers that take 1 s and 10 bytes, and 1 byte for each micro-batch."""
    seconds = np.array([[0.0, *[1.0] * layers, loss_s]])
    host = np.array([[0.0, *[host_s] * layers, 0.0]])
    layer_bytes = np.array([[0.0, *[1.0] * layers, 0.0]])
    counts = np.array([alive or [[1.0] * order.pipeline.chunks] * order.pipeline.stages])
    return share(order, (seconds, host), (Held(10 * layer_bytes, layer_bytes, counts, np.array([2.0])),), room_bytes)[0]


def _order(schedule: str, stages: int, chunks: int = 1) -> Order:
    return Order.of(stages, chunks, SCHEDULES.index(schedule), NO_OVERLAP)


def test_cuts_have_all_layers_and_the_even_one_is_first() -> None:
    # 10 layers on 4 stages: 3, 3, 2, 2 are even; ends of 0 to 4 layers are tried, 5 * 5 cuts, of which that is one.
    tried, edges = cuts(10, _order("1f1b", 4).pipeline)
    assert tried[0] == (3, 3, 2, 2)
    assert len(tried) == len(set(tried)) == 25
    assert {sum(cut) for cut in tried} == {10}
    # The first stage has the piece before the layers, too, and the last one the piece behind them.
    assert edges[0].tolist() == [0, 4, 7, 9, 12]


def test_the_stage_with_the_loss_has_fewer_layers() -> None:
    # 10 layers and a loss of 2: 12 s on four stages are 3 s each. The first two ways to reach that are alike.
    assert _shared(_order("1f1b", 4), layers=10, loss_s=2.0) == (3, 3, 3, 1)
    assert _shared(_order("1f1b", 4), layers=10, loss_s=0.0) == ()


def test_a_host_that_launches_for_longer_decides() -> None:
    # A loss of 2 leaves the last stage one layer of 1 s; but hosts take 2 s for each of ten layers, and none for the
    # loss: 3, 3, 2, 2 takes them 6 s, and no cut less.
    assert _shared(_order("1f1b", 4), layers=10, loss_s=2.0, host_s=2.0) == ()


def test_of_cuts_that_take_as_long_the_one_with_least_memory_is_taken() -> None:
    # 9 layers and a loss of 3 take 12 s: 3, 3, 3, 0 alone takes 3 s. Of 8 layers one stage of three may have 2. Three
    # of them are 3 * 14 + 2 bytes on the first stage, which has 4 micro-batches in flight, 3 * 13 + 2 on the second.
    alive = [[4.0], [3.0], [2.0], [1.0]]
    assert _shared(_order("1f1b", 4), layers=9, loss_s=3.0, alive=alive) == (3, 3, 3, 0)
    assert _shared(_order("1f1b", 4), layers=8, loss_s=3.0, alive=alive) == (2, 3, 3, 0)


def test_a_stage_without_room_gives_layers_away_though_that_takes_longer() -> None:
    # The first of two stages holds 10 + 5 bytes for a layer and the second 10 + 1, each 2 besides: 62 and 46 for four
    # layers, 47 and 57 for three and five. In 50 bytes there is room for neither.
    alive = [[5.0], [1.0]]
    assert _shared(_order("1f1b", 2), layers=8, loss_s=0.0, alive=alive, room_bytes=62.0) == ()
    assert _shared(_order("1f1b", 2), layers=8, loss_s=0.0, alive=alive, room_bytes=61.0) == (3, 5)
    assert _shared(_order("1f1b", 2), layers=8, loss_s=0.0, alive=alive, room_bytes=50.0) == ()


def test_chunks_are_timed_one_by_one() -> None:
    # Two stages of two chunks, 8 layers. With a loss of 1 the even cut takes 2 + 3 s, and no other takes less. With one
    # of 2 it takes 2 + 4, and 3, 3, 2, 0 takes 3 + 2. With one of 4 the second chunk takes 4, the first at least 3.
    assert _shared(_order("1f1b", 2, 2), layers=8, loss_s=1.0) == ()
    assert _shared(_order("1f1b", 2, 2), layers=8, loss_s=2.0) == (3, 3, 2, 0)
    assert _shared(_order("1f1b", 2, 2), layers=8, loss_s=4.0) == (2, 3, 3, 0)


def test_a_stage_of_two_directions_has_both_its_halves_to_do() -> None:
    # Stages 0 and 3 both have virtual stages 0 and 3: with a loss of 2 those have 2 + 2 s of layers, others 3 + 3.
    cut = _shared(_order("dualpipe", 4), layers=10, loss_s=2.0)
    assert cut[0] + cut[3] == 4
    assert cut[1:3] == (3, 3)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_an_uneven_split_is_found_and_is_faster(tmp_path: Path, schedule: str) -> None:
    # Four layers and a vocabulary that takes about as long as two of them, on two stages.
    scenario, folder = write_small(tmp_path)("dense", "training.global_batch_sequences=64", *LONG)
    config = (folder / "small-dense.json").read_text().replace('"vocab_size": 2048', '"vocab_size": 65536')
    (folder / "small-dense.json").write_text(config)
    search, _ = prepare(scenario, folder)
    asked = search.splits["schedule"] == SCHEDULES.index(schedule)
    asked &= (search.splits["pp"] == 2) & (search.splits["virtual_pipeline"] == 1) & (search.splits["tp"] == 1)
    number = int(np.flatnonzero(asked & (search.splits["cp"] == 1) & (search.splits["zero"] == 1))[0])
    while search.bounds.sharpen(np.array([number])):
        pass
    split = search.splits.split(number)
    assert split.stage_layers == (3, 1)
    settings = settings_of(split, scenario.training)
    even = settings | {"parallel": {name: v for name, v in settings["parallel"].items() if name != "stage_layers"}}
    uneven_s, even_s = (
        forecast(changed(scenario, change), folder).summary["step_time_s"]["p50"] for change in (settings, even)
    )
    assert uneven_s < even_s
