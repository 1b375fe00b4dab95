"""What Megatron-LM on Transformer Engine runs around experts and in latent attention, where stacks differ.

Measured times are sums over the kernels of a profile on one H200, torch 2.11 and Triton 3.6: megatron-core 0.16.1's
router and rotation, Transformer Engine 2.11's permutation, 2026-11-30. A start is 2 us or less of each kernel's time.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from model_operators import one

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.architecture import DenseFeedForward, LatentAttention, MixtureOfExperts
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.layers import component_operators

H200 = load_accelerator("h200-sxm", Path())
TOKENS = 4096
STACK = Workload((TOKENS,), megatron=True)
PADDED = replace(STACK, padded_experts=True)
V3, V2 = MixtureOfExperts(256, 8, 2048), MixtureOfExperts(160, 6, 1536)
MOONLIGHT = MixtureOfExperts(64, 6, 1408)
LATENT = LatentAttention(128, 1536, 512, nope_dim=128, rope_dim=64, v_dim=128)


def seconds(kernels: tuple[Kernel, ...], rows: float = 1.0, *, backward: bool = False) -> float:
    """Device time of *kernels* without the gaps between them; costs per row count *rows* times."""
    total = 0.0
    for kernel in kernels:
        n = kernel.launches
        time = kernel_time(
            H200, kernel.kind, kernel.flops * rows / n, kernel.bytes * rows / n, kernel.shape, kernel.dtype,
            backward=backward,
        )  # fmt: skip
        total += float(time.seconds) * n
    return total


def launches(kernels: tuple[Kernel, ...]) -> int:
    return sum(kernel.launches for kernel in kernels)


def experts(part: MixtureOfExperts, hidden: int, workload: Workload = STACK) -> tuple[Operator, ...]:
    return component_operators(part, hidden, workload)


def test_the_router_is_a_chain_of_some_thirty_kernels_over_tokens_and_experts() -> None:
    route = one(experts(V3, 7168), "route")
    assert launches(route.forward) == pytest.approx(32, abs=2)
    assert launches(route.backward) == pytest.approx(16, abs=1)
    assert seconds(route.forward) == pytest.approx(213e-6, rel=0.15)
    assert seconds(route.backward, backward=True) == pytest.approx(39e-6, rel=0.15)


SIGMOID = replace(MOONLIGHT, router_bias=True)
GROUPED = replace(V3, router_bias=True, groups=8, best_groups=4)


def test_sigmoids_over_their_sum_and_groups_take_more_kernels() -> None:
    """Counted by tests/validation/count_router_kernels.py: 9 more forward and 13 backward, and 9 more for groups."""
    plain, sigmoid, grouped = (one(experts(part, 2048), "route") for part in (MOONLIGHT, SIGMOID, GROUPED))
    assert launches(sigmoid.forward) - launches(plain.forward) == 9
    assert launches(sigmoid.backward) - launches(plain.backward) == 13
    assert launches(grouped.forward) - launches(sigmoid.forward) == 9
    assert launches(grouped.backward) == launches(sigmoid.backward)


def test_a_fused_router_leaves_a_dozen_kernels() -> None:
    """Counted with them in place: 9 forward and 10 backward, with the dispatcher's three, and two for the bias."""
    fused = replace(STACK, fused_router=True)
    for part, counts in ((MOONLIGHT, 0), (SIGMOID, 2)):
        route = one(experts(part, 2048, fused), "route")
        assert launches(route.forward) == 9 + 3 + counts
        assert launches(route.backward) == 10


def test_counts_are_summed_and_copied_to_the_host_before_they_are_told() -> None:
    names = [operator.name for operator in experts(V3, 7168)]
    assert names[names.index("route") + 1] == "count_rows"
    assert launches(one(experts(V3, 7168), "count_rows").forward) == 3 + 4
    assert "count_rows" not in {operator.name for operator in experts(V3, 7168, PADDED)}


def test_a_token_that_goes_to_a_rank_once_becomes_rows_there() -> None:
    operators = experts(V3, 7168, replace(STACK, sent_once=True))
    names = [operator.name for operator in operators]
    behind = ["preprocess", "dispatch", "sort_by_expert", "experts_fc1", "experts_activation", "experts_fc2"]
    assert (
        names[names.index("route") + 1 :]
        == [*behind, "sort_by_source", "combine", "feed_forward_add"][: len(names) - names.index("route") - 1]
    )
    # Beside a token of 7,168 travel the weights of its eight experts in fp32 and their numbers in int64.
    assert one(operators, "dispatch").payload_bytes == 2 * 7168 + 8 * (4 + 8)
    assert one(operators, "combine").payload_bytes == 2 * 7168
    # What comes home is the sum of a token's eight rows.
    assert one(operators, "combine").output_bytes == 2 * 7168 / 8
    # A choice out of the table and the number of tokens for each rank; then a table, two passes, a sort and the rows.
    assert [launches(one(operators, name).forward) for name in behind[:3]] == [2, 0, 5]
    assert launches(one(operators, "sort_by_source").forward) == 1


def test_pytorch_finds_rows_in_four_parts_of_which_the_host_waits_for_three() -> None:
    operators = experts(V3, 7168, replace(STACK, sent_once=True, framework_table=True))
    names = [operator.name for operator in operators]
    behind = names[names.index("dispatch") + 1 : names.index("sort_by_expert")]
    assert behind == [f"find_rows_{part}" for part in (1, 2, 3, 4)]
    found = [one(operators, name) for name in behind]
    assert [operator.waits for operator in found] == [True, True, True, False]
    assert sum(launches(operator.forward) for operator in found) == 28


def test_padded_rows_go_each_by_itself() -> None:
    assert "permute" in {operator.name for operator in experts(V3, 7168, replace(PADDED, sent_once=True))}


def test_choosing_the_tokens_of_each_expert_takes_more() -> None:
    """Measured with groups of experts, whose choice is not in the model: 378 us and 54 us."""
    route = one(experts(V3, 7168, PADDED), "route")
    assert 213e-6 < seconds(route.forward) < 378e-6
    assert 39e-6 < seconds(route.backward, backward=True) < 54e-6
    # Two masks of a byte for each token and expert.
    masks = 2 * TOKENS * 256
    assert sum(s.bytes for s in route.saved) == masks + sum(s.bytes for s in one(experts(V3, 7168), "route").saved)


@pytest.mark.parametrize(
    ("part", "hidden", "tokens", "measured_us"),
    [(V3, 7168, TOKENS, 255), (V2, 5120, TOKENS, 177), (MOONLIGHT, 2048, 2048, 32)],
)
def test_permuting_numbers_the_rows_first(part: MixtureOfExperts, hidden: int, tokens: int, measured_us: float) -> None:
    permute = one(experts(part, hidden, replace(STACK, sequence_lengths=(tokens,))), "permute")
    assert [(k.kind, k.launches) for k in permute.forward] == [("scatter", 2), ("bitonic_sort", 1), ("gather", 1)]
    assert seconds(permute.forward) == pytest.approx(measured_us * 1e-6, rel=0.1)
    # Two int32 for each expert and a count for each token.
    assert sum(s.bytes for s in permute.saved) == tokens * (2 * part.experts + 1) * 4


@pytest.mark.parametrize(
    ("part", "hidden", "tokens", "forward_us", "backward_us"),
    [(V3, 7168, TOKENS, 275, 232), (V2, 5120, TOKENS, 155, 126), (MOONLIGHT, 2048, 2048, 39, 26)],
)
def test_chunks_are_sorted_by_a_map_of_rows(
    part: MixtureOfExperts, hidden: int, tokens: int, forward_us: float, backward_us: float
) -> None:
    order = one(experts(part, hidden, replace(STACK, sequence_lengths=(tokens,))), "sort_by_expert")
    rows = tokens * part.top_k
    assert [launches(order.forward), launches(order.backward)] == [2, 1]
    assert seconds(order.forward, rows) == pytest.approx(forward_us * 1e-6, rel=0.2)
    assert seconds(order.backward, rows) == pytest.approx(backward_us * 1e-6, rel=0.05)


@pytest.mark.parametrize(("part", "hidden", "rows", "measured_us"), [(V3, 7168, 32768, 577), (V2, 5120, 24640, 311)])
def test_padded_experts_are_transposed(part: MixtureOfExperts, hidden: int, rows: int, measured_us: float) -> None:
    for name in ("sort_by_expert", "sort_by_source"):
        order = one(experts(part, hidden, PADDED), name)
        assert order.forward == order.backward
        assert seconds(order.forward, rows) == pytest.approx(measured_us * 1e-6, rel=0.05)


def test_the_host_waits_for_counts_unless_experts_are_padded() -> None:
    assert one(experts(V3, 7168), "dispatch").counts == "all_gather"
    assert one(experts(V3, 7168, PADDED), "dispatch").counts is None


def test_weights_of_rows_travel_beside_them() -> None:
    assert one(experts(V3, 7168), "dispatch_weights").payload_bytes == 4
    elsewhere = experts(V3, 7168, Workload((TOKENS,)))
    assert "dispatch_weights" not in {operator.name for operator in elsewhere}


def test_the_gradient_of_a_gated_product_reads_what_both_halves_need_twice() -> None:
    """Measured: 276 us for 4,096 x 18,432, 384 us for 32,768 x 2,048 with the gradient of the rows' weights."""
    dense = one(component_operators(DenseFeedForward(18_432), 7168, STACK), "activation")
    assert [k.bytes for k in dense.backward] == [7 * TOKENS * 18_432 * 2]
    assert seconds(dense.backward, backward=True) == pytest.approx(276e-6, rel=0.12)
    routed = one(experts(V3, 7168), "experts_activation")
    assert [k.bytes for k in routed.backward] == [7 * 2048 * 2, 3 * 2048 * 2]
    assert seconds(routed.backward, 32_768, backward=True) == pytest.approx(384e-6, rel=0.15)


def test_queries_rotate_in_place_and_keys_where_they_are_joined() -> None:
    """Measured: 68 and 81 us forward and backward, 153 us each way for keys and values."""
    rotary, join = (one(component_operators(LATENT, 7168, STACK), name) for name in ("rotary", "join_keys"))
    assert [k.bytes for k in rotary.forward] == [2 * TOKENS * 128 * 64 * 2]
    assert seconds(rotary.forward) == pytest.approx(75e-6, rel=0.15)
    assert seconds(join.forward) == pytest.approx(153e-6, rel=0.06)
    assert seconds(join.backward, backward=True) == pytest.approx(153e-6, rel=0.06)
