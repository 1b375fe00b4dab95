from dataclasses import replace

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.memory import remember, room_bytes
from simulator.forecast.swap_schedule import ROOM, Room, _greedy, _solved, schedule
from simulator.program.swap_candidates import Candidate, Window
from simulator.program.training_step import TrainingStep

THIN, THICK = (
    Candidate("thin", 10, 10.0, frozenset({(0, 0)})),
    Candidate("thick", 10, 100.0, frozenset({(0, 1)})),
)
AUTO = ("training.swap=auto", "training.recompute=full")


def window(free_s: float, cost_s_per_byte: float = 0.0) -> Window:
    """Running again takes 5 s for the thin result and 10 s for the thick one; copies go at 10 bytes a second."""
    return Window({(0, 0): 5.0, (0, 1): 10.0}, 10.0, 10.0, free_s, free_s, cost_s_per_byte)


@pytest.mark.parametrize("choose", [_solved, _greedy])
def test_what_saves_most_a_byte_stays_and_the_rest_goes_where_copies_are_hidden(choose) -> None:
    choice = choose([THIN, THICK], window(30.0, 0.001), Room(card=30.0, host=1000.0))
    # Ten bytes could stay, and twenty are for two layers' thick tensors on their way: nothing runs again.
    for name in ("thin", "thick"):
        assert choice.card.get(name, 0.0) + choice.host.get(name, 0.0) == pytest.approx(1.0)
    assert choice.host["thick"] > choice.card.get("thick", 0.0)


def test_copies_that_are_not_hidden_are_not_made() -> None:
    # 100 bytes take 10 s each way; 15 s are left of the backward pass when the 5 s of the thin one and 10 s are spared.
    assert _solved([THIN, THICK], window(4.0), Room(card=1e3, host=0.0)).host == {}
    part = _solved([THICK], window(5.0), Room(card=60.0, host=1e3))
    # 10 bytes a layer: 2 layers of window on the card, 0.1 n * 10 s of copies and as much of running again in 5 s.
    assert part.host.get("thick", 0.0) * 100 / 10 <= 5.0


def test_copies_that_hold_up_exchanges_must_pay_for_it() -> None:
    room = Room(card=60.0, host=1e3)
    assert _solved([THICK], window(100.0, 0.05), room).host
    # 100 bytes at 0.11 s each cost more than the 10 s that they save.
    assert not _solved([THICK], window(100.0, 0.11), Room(card=0.0, host=1e3)).host


def test_with_room_for_everything_nothing_travels(small: Small) -> None:
    job = assemble_job(*small("mixture", *AUTO, "parallel={dp_shard: 16, ep: 16}"))
    assert not job.swap.host
    assert job.swap.card["attention"] == 1.0


def test_the_summary_says_what_was_chosen_and_it_is_faster(small: Small) -> None:
    chosen = forecast(*small("dense", *AUTO)).summary
    plain = forecast(*small("dense", "training.recompute=full")).summary
    assert chosen["swap"]["on_card"]["attention"] == 1.0
    assert "swap" not in plain
    assert chosen["step_time_s"]["p50"] < plain["step_time_s"]["p50"]


def test_a_choice_leaves_room_for_what_the_allocator_reserves(small: Small) -> None:
    # A card with 50 MB beyond what recomputing everything reserves: sixteen attention results of 4 MiB would fit.
    job = assemble_job(*small("dense", "training.recompute=full"))
    programs = TrainingStep(job).programs(1)
    memory = remember(programs, job.cluster, job.folding)
    taken = memory.reserved_bytes + memory.outside_bytes
    capacity = (taken + 50e6) / (1 - ROOM)
    sheet = job.cluster.accelerator.sheet
    smaller = sheet.model_copy(update={"hbm_capacity": sheet.hbm_capacity.model_copy(update={"value": capacity})})
    accelerator = replace(job.cluster.accelerator, sheet=smaller)
    tight = replace(job, cluster=replace(job.cluster, accelerator=accelerator))
    chosen = replace(tight, swap=schedule(tight, ["attention", "gate_up"]))
    assert chosen.swap
    left, _ = room_bytes(TrainingStep(chosen).programs(1), tight.cluster, tight.folding)
    assert left >= ROOM * capacity


def test_a_choice_needs_something_to_choose_from(small: Small) -> None:
    with pytest.raises(Refused, match="allowed: recompute full"):
        assemble_job(*small("dense", "training.swap=auto"))
    stages = ("parallel={dp_shard: 8, pp: 2}", "training.global_batch_sequences=32")
    with pytest.raises(Refused, match=r"pp\(2\); shares count over all layers.*allowed: pp 1, or shares by name"):
        assemble_job(*small("dense", *AUTO, *stages))
