import gzip
from pathlib import Path

import pytest
from small_jobs import Small, lower

from simulator.engine.allocator import Replay
from simulator.engine.ledger import account
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.fitting import fit
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.program.rebuilt import second_step
from simulator.program.stage import StageProgram

# Four layers 1024 wide with 8 heads and an intermediate width of 4096; a vocabulary of 2048.
LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
PARAMETERS = 4 * LAYER + 2 * 2048 * 1024 + 1024
CONTEXT = 0.82e9 + 0.87e9
WHOLE = "training.fsdp.made=whole"
VIEWS = (
    "training.zero=0",
    "parallel={dp_replicate: 16}",
    "training.optimizer={state_dtype: bf16, master_weights: false}",
    "training.ddp.gradient_as_bucket_view=true",
)
TESTS = Path(__file__).parent
RECORDED = TESTS / "allocations" / "llama8b-16l-ddp-view-two-steps.txt.gz"
DDP_CASE = TESTS / "validation" / "h200-data-parallel" / "llama8b-16l-ddp-view-b1-s4096.yaml"


def left_by_setting_up(program: StageProgram) -> dict[str, float]:
    held: dict[str, float] = {}
    for task in program.set_up:
        held |= {item.key: float(item.bytes) for item in task.allocates}
        for key in task.releases:
            del held[key]
    return held


@pytest.mark.parametrize("overrides", [(), (WHOLE,), ("training.zero=1",), ("training.zero=2",)])
def test_setting_up_leaves_what_is_resident(small: Small, overrides: tuple[str, ...]) -> None:
    program = lower(small("dense", *overrides))
    assert left_by_setting_up(program) == {item.key: item.bytes for item in program.resident}


def test_a_whole_model_goes_when_the_shards_of_its_units_are_there(small: Small) -> None:
    program = lower(small("dense", WHOLE))
    peak = account(program.set_up, [], 1)["hbm"].peak_bytes[0]
    # fp32; the first of four layers has a sixteenth of itself beside the whole model.
    assert peak == 4 * PARAMETERS + 4 * LAYER / 16
    shards = [task for task in program.set_up if task.name.startswith("shard ")]
    assert [task.name for task in shards] == [*(f"shard layer {n}" for n in range(4)), "shard root"]
    assert all(len(task.allocates) == len(task.releases) == 1 for task in shards)


def test_segments_of_a_whole_model_stay(small: Small) -> None:
    replay = Replay(0)
    program = lower(small("dense", WHOLE))
    replay.run(program.set_up)
    assert replay.allocator.reserved_bytes >= 4 * PARAMETERS + 4 * LAYER / 16
    assert replay.allocator.allocated_bytes == pytest.approx(sum(float(i.bytes) for i in program.resident), rel=1e-3)


def test_a_model_that_is_too_large_whole_does_not_fit_and_shards_do(small: Small) -> None:
    read = small("dense", WHOLE)
    hbm = forecast(*read).summary["memory"]["hbm"]
    assert hbm["settling_peak_bytes"] == 4 * PARAMETERS + 4 * LAYER / 16 + CONTEXT
    # 70 billion parameters in fp32 are more than an H100 has.
    found = fit(*read_scenario("llama3-70b-fsdp-64xh100", (WHOLE,)))
    assert found["verdict"] == "does not fit"
    assert found["memory"]["hbm"]["peak_bytes"] < found["memory"]["hbm"]["capacity_bytes"]
    assert "training.fsdp.made=sharded" in [suggestion["change"] for suggestion in found["suggestions"]]


def test_the_second_step_of_ddp_makes_its_buckets_anew_beside_the_first_where_gradients_are_views(small: Small) -> None:
    program = lower(small("dense", *VIEWS))
    assert left_by_setting_up(program)["first bucket"] == 2 * PARAMETERS
    assert program.rebuilt is not None
    tasks = second_step(program.tasks, program.rebuilt)
    assert [item.key for item in tasks[0].allocates] == ["resident.buckets"]
    freed = next(number for number, task in enumerate(tasks) if "first bucket" in task.releases)
    assert tasks[freed - 1].name == "gradient to bucket"
    assert "gradient to bucket" not in [task.name for task in tasks[: freed - 1]]


def test_without_views_the_first_bucket_is_gone_before(small: Small) -> None:
    program = lower(small("dense", *VIEWS[:-1]))
    assert program.rebuilt is not None
    first, second, *others = second_step(program.tasks, program.rebuilt)
    assert (first.releases, [item.key for item in second.allocates]) == (("first bucket",), ["resident.buckets"])
    assert others == program.tasks


def test_a_recorded_run_of_ddp_has_these_buckets_and_its_highest_peak_in_the_second_step() -> None:
    with gzip.open(RECORDED, "rt") as lines:
        events = [line.split() for line in lines if not line.startswith("#")]
    sizes = [int(event[1]) for event in events if event[0] == "take"]
    held, peak = 0, 0
    for verb, value, *_ in events:
        held += int(value) if verb == "take" else -sizes[int(value)] if verb == "give" else 0
        peak = max(peak, held)
    program = lower(read_scenario(str(DDP_CASE)))
    assert program.rebuilt is not None
    assert program.rebuilt.old.bytes in sizes
    start = events.index(["mark", "step", "1"])
    taken = [int(event[1]) for event in events[start:] if event[0] == "take"]
    buckets = [int(size) for size in program.rebuilt.new.pieces]
    at = taken.index(buckets[0])
    # The norms of a layer, 8 KiB each, lie in other buckets than they do in the order of its parameters.
    assert sorted(taken[at : at + len(buckets)]) == pytest.approx(sorted(buckets), abs=2 * 8192)
    forecasted = forecast(*read_scenario(str(DDP_CASE))).summary["memory"]["hbm"]
    assert forecasted["settling_peak_bytes"] - CONTEXT == pytest.approx(peak, rel=2e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.zero=1",), r"training.fsdp.made: found whole, but zero 1 keeps parameters whole; .* zero 3"),
        (("parallel={dp_shard: 8, tp: 2}",), r"found whole, but tp\(2\) splits the model before FSDP2 does; allowed"),
    ],
)
def test_a_whole_model_is_sharded_by_fsdp_alone(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", WHOLE, *overrides))
