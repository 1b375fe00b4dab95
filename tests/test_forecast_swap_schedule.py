from dataclasses import replace

import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.memory import remember, room_bytes
from simulator.forecast.swap_schedule import ROOM, Room, _greedy, _solved, schedule
from simulator.program.job import Job
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
    (swap,) = job.swaps
    assert not swap.host
    assert swap.card["attention"] == 1.0


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
    tight = _with_capacity(job, capacity)
    chosen = replace(tight, swaps=schedule(tight, ["attention", "gate_up"], 1))
    assert any(chosen.swaps)
    (left,), _ = room_bytes(TrainingStep(chosen).programs(1), tight.cluster, tight.folding)
    assert left >= ROOM * capacity


def test_the_first_stage_which_holds_most_micro_batches_keeps_least(small: Small) -> None:
    stages = ("training.recompute=full", "parallel={dp_shard: 8, pp: 2}", "training.global_batch_sequences=64")
    job = assemble_job(*small("dense", *stages))
    left, _ = room_bytes(TrainingStep(job).programs(4), job.cluster, job.folding)
    # Of the results of its two layers, 4.06 MiB of attention and 32 MiB of gate_up each, the first stage holds two
    # micro-batches', the second one's: with 60 MB beyond what the first has taken, each finds room as it can.
    tight = _with_capacity(job, (job.cluster.accelerator.hbm_capacity_bytes - left[0] + 60e6) / (1 - ROOM))
    swaps = schedule(tight, ["attention", "gate_up"], 8)
    kept = [sum(swap.card.values()) for swap in swaps]
    assert 0 < kept[0] < kept[1]
    found, _ = room_bytes(TrainingStep(replace(tight, swaps=swaps)).programs(4), tight.cluster, tight.folding)
    assert min(found) >= ROOM * tight.cluster.accelerator.hbm_capacity_bytes


def test_where_nothing_fits_what_leaves_most_is_chosen(small: Small) -> None:
    job = assemble_job(*small("dense", "training.recompute=full"))
    (left,), _ = room_bytes(TrainingStep(job).programs(1), job.cluster, job.folding)
    # Far too little: all that four layers could send to the host is a few of their inputs of 4 MiB.
    tight = _with_capacity(job, 0.5 * (job.cluster.accelerator.hbm_capacity_bytes - left))
    (swap,) = schedule(tight, ["attention", "layer_input"], 1)
    (more,), _ = room_bytes(TrainingStep(replace(tight, swaps=(swap,))).programs(1), tight.cluster, tight.folding)
    (less,), _ = room_bytes(TrainingStep(tight).programs(1), tight.cluster, tight.folding)
    assert less < more < 0


def test_a_choice_needs_something_to_choose_from(small: Small) -> None:
    with pytest.raises(Refused, match="allowed: recompute full"):
        assemble_job(*small("dense", "training.swap=auto"))


def _with_capacity(job: Job, capacity_bytes: float) -> Job:
    """*job* on cards of so much memory."""
    sheet = job.cluster.accelerator.sheet
    smaller = sheet.model_copy(update={"hbm_capacity": sheet.hbm_capacity.model_copy(update={"value": capacity_bytes})})
    accelerator = replace(job.cluster.accelerator, sheet=smaller)
    return replace(job, cluster=replace(job.cluster, accelerator=accelerator))
