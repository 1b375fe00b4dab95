"""Recorded tokens say what an exchange between nodes carries: two nodes of eight H200, 16 experts, 2 a token."""

import numpy as np
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.program.batch_steps import expert_loads

NEAR = [[2 * n, 2 * n + 1] for n in range(8)]
"""Both experts of a token in one node."""
FAR = [[n, n + 8] for n in range(8)]
"""One in each."""


def scenario(small: Small, pairs: list[list[int]], way: str, *more: str):
    read, folder = small("mixture", "parallel.ep=16", f"training.exchange={way}", "routing.trace=tokens.npy", *more)
    np.save(folder / "tokens.npy", np.repeat(np.array(pairs)[:, None], 4, axis=1))
    return read, folder


def carried(small: Small, pairs: list[list[int]], way: str, *more: str) -> np.ndarray:
    job = assemble_job(*scenario(small, pairs, way, *more))
    return expert_loads(job, 0)[0].wire_rows


def test_the_popularity_of_both_is_the_same(small: Small) -> None:
    near, far = (assemble_job(*scenario(small, pairs, "hierarchical")).routing for pairs in (NEAR, FAR))
    assert near is not None
    assert far is not None
    assert near.rows.tolist() == far.rows.tolist()


def test_a_token_enters_a_node_once(small: Small) -> None:
    # A rank's 2,048 tokens: half of them enter the other node when both experts are in one, all when they are apart.
    near, far = (carried(small, pairs, "hierarchical") for pairs in (NEAR, FAR))
    assert (near[0, 8], far[0, 8]) == (1024, 2048)
    # Every rank has its expert for one of eight tokens, and each node's ranks pass on the tokens of both nodes.
    assert near[0, 1] == far[0, 1] == 2 * 2048 / 8


def test_copies_on_ranks_are_counted_where_the_experts_are(small: Small) -> None:
    # On eight ranks of two experts, a token with neighbouring experts goes to one rank, else to two.
    near, far = (carried(small, pairs, "deduplicated", "parallel.ep=8") for pairs in (NEAR, FAR))
    assert near.tolist() == np.full((8, 8), 2048 / 8).tolist()
    assert far.tolist() == np.full((8, 8), 2 * 2048 / 8).tolist()


def test_what_goes_together_shortens_the_step(small: Small) -> None:
    long = ("training.sequence_length=8192",)
    near, far = (forecast(*scenario(small, pairs, "hierarchical", *long)).summary for pairs in (NEAR, FAR))
    assert near["time"]["exposed_all_to_all_s"] < 0.75 * far["time"]["exposed_all_to_all_s"]


def test_a_policy_that_changes_choices_leaves_popularity_alone_known(small: Small) -> None:
    noisy = "routing.policy={name: router_noise}"
    near, far = (carried(small, pairs, "hierarchical", noisy) for pairs in (NEAR, FAR))
    assert near.tolist() == far.tolist()
