"""What offloading the optimizer adds to a step and takes from a card, against Megatron-Bridge's ladder.

The ladder does not say its sequence length and recipe, so that its steps as a whole are told by the held errors; what
a share of the optimizer on the host changes depends on neither, and what a card holds between steps does not, either.
"""

from pathlib import Path

import pytest

from simulator.forecast.validation import validate

LADDER = Path(__file__).parent / "validation" / "offload"
SHARES = (0, 25, 50, 75, 100)
STEP, HELD = "step_time_s", "held_allocated_bytes"


@pytest.fixture(scope="module")
def ladder() -> dict[str, dict[int, tuple[float, float]]]:
    found: dict[str, dict[int, tuple[float, float]]] = {STEP: {}, HELD: {}}
    for one in validate([LADDER / f"megatron-qwen3-30b-optimizer-{share}.yaml" for share in SHARES]):
        found[one.metric][int(one.case.rsplit("-", 1)[1])] = one.measured, one.predicted
    return found


@pytest.mark.parametrize(("share", "error"), [(25, -0.06), (50, 0.07), (75, 0.10), (100, -0.01)])
def test_time_that_it_adds(ladder, share: int, error: float) -> None:
    measured, predicted = (ladder[STEP][share][side] - ladder[STEP][0][side] for side in (0, 1))
    assert predicted / measured - 1 == pytest.approx(error, abs=0.01)


@pytest.mark.parametrize("share", SHARES)
def test_memory_that_a_card_holds_between_steps(ladder, share: int) -> None:
    measured, predicted = ladder[HELD][share]
    assert predicted == pytest.approx(measured, rel=0.01)
