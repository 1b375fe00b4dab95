from pathlib import Path

import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.forecast.assembly import assemble_job
from simulator.forecast.reserved import reserve
from simulator.forecast.validation import validate


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", ()),
        ("dense", ("parallel.dp_shard=4", "parallel.dp_replicate=4", "training.recompute=full")),
        ("dense", ("training.optimizer.master_weights=false", "training.optimizer.state_dtype=bf16")),
        ("mixture", ("parallel.ep=8", "routing.synthetic.sigma=1")),
    ],
)
def test_more_is_reserved_than_is_allocated_at_the_peak(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    read = small(kind, *overrides)
    program, behaviours = lower(read), assemble_job(*read).folding.behaviours
    ledger = account(program.tasks, [*program.resident, *program.born], behaviours)["hbm"]
    for behaviour in (0, behaviours - 1):
        found = reserve(program, behaviour)
        assert found == reserve(program, behaviour)
        assert found.reserved_bytes >= ledger.peak_bytes[behaviour]
        assert found.fragmentation == pytest.approx(1 - found.allocated_bytes / found.reserved_bytes)


def test_one_micro_batch_more_than_are_in_flight_stands_for_all(small: Small) -> None:
    read = small("dense")
    one, two, four = (reserve(lower(read, number), 0).reserved_bytes for number in (1, 2, 4))
    # The second one finds the first one's gradients still there.
    assert one < two == four


def test_measured_runs_reserve_what_is_forecast_within_five_percent() -> None:
    cases = Path(__file__).parent / "validation"
    own = [*sorted(cases.glob("*.yaml")), cases / "h200" / "llama1b-b1-s32768-recompute.yaml"]
    errors = {c.case: c.error for c in validate(own) if c.metric == "peak_reserved_bytes"}
    assert len(errors) >= 6
    assert max(abs(error) for error in errors.values()) < 0.05, errors
