import numpy as np
import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.forecast.rebalancing import rebalancing

EPLB = ("parallel.ep=8", "routing.synthetic={sigma: 1.5}", "routing.policy={name: eplb}")
# A layer's expert: three matrices of 1024 x 512; two ranks share each expert.
SHARD = 3 * 1024 * 512 / 2


def test_experts_that_stay_cost_nothing(small: Small) -> None:
    routing = forecast(*small("mixture", "parallel.ep=8")).summary["routing"]
    assert (routing["experts_moved"], routing["rebalance_bytes"], routing["rebalance_s"]) == (0, 0.0, 0.0)


def test_a_rank_fetches_its_shard_of_what_it_lacks_with_the_states(small: Small) -> None:
    job = assemble_job(*small("mixture", *EPLB))
    assert job.routing is not None
    home = np.arange(16).reshape(8, 2)
    lacks = np.array(
        [[len(set(held) - set(home[rank])) for rank, held in enumerate(layer)] for layer in job.routing.placement.slots]
    )
    found = rebalancing(job)
    assert found["experts_moved"] == lacks.sum() > 0
    # Parameter and two moments stay from step to step.
    width = 4 + 2 * 4
    assert found["rebalance_bytes"] == lacks.sum(axis=0).max() * SHARD * width
    # The eight ranks of a group are one node: NVLink at the share of it that all-to-all attains
    assert found["rebalance_s"] == pytest.approx(found["rebalance_bytes"] / (450e9 * 0.7011), rel=1e-4)


def test_frozen_experts_travel_without_states(small: Small) -> None:
    lora = "training.lora={rank: 8, targets: [attention]}"
    whole, frozen = (assemble_job(*small("mixture", *EPLB, *more)) for more in ((), (lora,)))
    width = 4 + 2 * 4
    assert rebalancing(frozen)["rebalance_bytes"] * width == rebalancing(whole)["rebalance_bytes"] * 2
