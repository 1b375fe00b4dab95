import pytest

from simulator.documents import load
from simulator.forecast.assembly import find_architecture
from simulator.forecast.fitting import changed
from simulator.forecast.forecast import forecast
from simulator.forecast.scenario import Scenario
from simulator.model.census import census
from simulator.shipped import shipped

HOME = shipped("scenarios")


def ten_trillion(super_pods: int) -> Scenario:
    """The shipped job on so many SuperPoDs of 8,192 cards, each with a batch of 16,384 sequences."""
    scenario = load(HOME / "kimi-10t-pretrain-16384x950.yaml", Scenario)
    return changed(
        scenario,
        {
            "cluster.accelerators": 8192 * super_pods,
            "parallel.dp_replicate": super_pods,
            "training.global_batch_sequences": 16384 * super_pods,
        },
    )


def test_ten_trillion_parameters_by_hand() -> None:
    found = census(find_architecture("kimi-10t", HOME))
    # 120 layers of 2,560 experts, each three matrices between 3,584 and 3,072 wide: 99.3 % of all.
    experts = 120 * 2560 * 3 * 3584 * 3072
    assert experts == 10_146_860_236_800
    assert found.total_parameters == pytest.approx(experts / 0.993, rel=1e-3)


def test_a_hundred_thousand_ranks_take_no_more_events_than_a_sixth_of_them() -> None:
    two, sixteen = (forecast(ten_trillion(super_pods), HOME) for super_pods in (2, 16))
    few, many = (found.summary["engine"]["events"] for found in (two, sixteen))
    # Sums between replicas that last longer end beside other tasks here and there.
    assert many == pytest.approx(few, rel=1e-3)
    assert many < 200_000
    # A ring of 16 SuperPoDs sends 2 x 15/16 of the gradients where one of 2 sends 2 x 1/2.
    assert two.summary["step_time_s"]["p50"] < sixteen.summary["step_time_s"]["p50"]
    hbm = [found.summary["memory"]["hbm"] for found in (two, sixteen)]
    assert hbm[0]["allocated_bytes"] == pytest.approx(hbm[1]["allocated_bytes"], rel=1e-9)
