"""Attention over scores in memory: 2 sequences of 64 tokens, 4 heads of 8 dims, so 2 * 4 * 64 * 64 = 32,768 scores."""

from dataclasses import replace

import pytest

from simulator.model.architecture import GroupedAttention
from simulator.model.operator import Workload
from simulator.model.operators.attention_core import AttentionShape
from simulator.model.operators.lane import own_lane, token_lane
from simulator.model.operators.layers import component_operators
from simulator.model.operators.residual import residual_add
from simulator.model.operators.unfused_attention import has_fused_softmax, unfused_attention

SCORES = 2 * 4 * 64 * 64
WORKLOAD = Workload((64, 64), attention="unfused", dropout=True)
SHAPE = AttentionShape(heads=4, kv_heads=4, qk_dim=8, v_dim=8)
TENSOR = 128 * 4 * 8 * 2
"""Bytes of the queries, the keys, the values or the output."""


def core(workload: Workload = WORKLOAD, shape: AttentionShape = SHAPE):
    return unfused_attention(token_lane(workload), workload, shape)


def test_the_scores_are_passed_over_six_and_a_half_times_forward_and_nine_and_a_half_times_backward():
    forward, backward = core().forward, core().backward
    products = (2 * SCORES + 2 * TENSOR) * 2
    assert sum(k.bytes for k in forward) == products + 2 * (2 + 2.5) * SCORES + 2 * TENSOR
    assert sum(k.bytes for k in backward) == 2 * products + 2 * (2.5 + 3) * SCORES + 10 * TENSOR


def test_one_kernel_a_product_and_a_step_between():
    assert [k.kind for k in core().forward] == ["gemm", "softmax", "elementwise", "gemm", "transpose"]
    kinds = ["gemm", "gemm", "elementwise", "softmax", "gemm", "gemm", "elementwise", "elementwise", "cat"]
    assert [k.kind for k in core().backward] == kinds


def test_a_product_costs_two_flops_a_score_and_dim_masked_or_not():
    first = core().forward[0]
    assert first.flops == 2 * SCORES * 8
    assert first.shape == (2 * 4 * 64, 64, 8)


def test_saved_are_operands_softmax_and_mask():
    sizes = {tensor.name: tensor.bytes for tensor in core().saved}
    inputs = dict.fromkeys(("query", "key", "value", "attention_output"), TENSOR)
    scores = {"attention_probabilities": 2 * SCORES, "attention_softmax": 2 * SCORES, "attention_dropout": SCORES}
    assert sizes == inputs | scores


def test_without_dropout_the_softmax_is_the_operand_and_no_mask_is_drawn():
    plain = core(replace(WORKLOAD, dropout=False))
    assert {tensor.name for tensor in plain.saved} == {
        "query", "key", "value", "attention_output", "attention_probabilities",
    }  # fmt: skip
    assert [k.kind for k in plain.forward] == ["gemm", "softmax", "gemm", "transpose"]


@pytest.mark.parametrize(
    ("heads", "length", "fused"),
    [
        (4, 1024, True),
        (2, 1024, False),
        (6, 1024, False),
        (4, 128, False),
        (8, 128, True),
        (4, 1022, False),
        (4, 4096, True),
        (4, 4100, False),
        (8, 16, False),
    ],
)
def test_the_softmax_kernel_takes_groups_of_four_heads(heads, length, fused):
    assert has_fused_softmax(heads, length) is fused


def test_the_bias_of_the_projections_is_added_by_a_kernel_of_its_own():
    component = GroupedAttention(4, 4, 8, qkv_bias=True)
    projection, *_ = component_operators(component, 32, WORKLOAD)
    assert [k.kind for k in projection.forward] == ["gemm", "broadcast"]
    assert projection.forward[1].bytes == 2 * 3 * TENSOR
    flash, *_ = component_operators(component, 32, replace(WORKLOAD, attention="flash"))
    assert [k.kind for k in flash.forward] == ["gemm"]


def test_two_heads_of_one_sequence_run_the_softmax_in_fp32_step_by_step():
    workload = Workload((256,), attention="unfused")
    operator = core(workload, AttentionShape(2, 2, 8, 8))
    scores = 2 * 256 * 256
    steps = operator.forward[1:-2]
    assert [k.kind for k in steps] == ["cast_up", "elementwise", "masked_fill", "softmax", "cast_down"]
    assert [k.bytes for k in steps] == [6 * scores, 8 * scores, 9 * scores, 8 * scores, 6 * scores]
    assert len(operator.backward) == 12
    assert {t.name: t.bytes for t in operator.saved}["attention_softmax"] == 4 * scores


def test_grouped_keys_and_values_are_repeated_for_every_head_and_summed_backward():
    operator = core(shape=AttentionShape(heads=4, kv_heads=1, qk_dim=8, v_dim=8))
    moved = 128 * (1 + 4) * 8 * 2
    assert [(k.kind, k.bytes) for k in operator.forward[:2]] == [("copy", moved)] * 2
    assert [(k.kind, k.bytes) for k in operator.backward[-3:-1]] == [("reduction", moved)] * 2
    assert operator.backward[-1].bytes == 2 * 128 * (4 + 1 + 1) * 8 * 2
    assert {t.name: t.bytes for t in operator.saved}["key"] == TENSOR


def test_a_mixer_runs_the_core_that_the_workload_asks_for():
    mixer = GroupedAttention(heads=4, kv_heads=4, head_dim=8)
    kinds = {
        attention: next(
            o for o in component_operators(mixer, 32, replace(WORKLOAD, attention=attention)) if o.name == "attention"
        ).forward[0].kind
        for attention in ("flash", "unfused")
    }  # fmt: skip
    assert kinds == {"flash": "attention", "unfused": "gemm"}


def test_a_tensor_parallel_rank_holds_its_heads_scores():
    mixer = GroupedAttention(heads=4, kv_heads=4, head_dim=8)
    whole = component_operators(mixer, 32, replace(WORKLOAD, dropout=False))
    half = component_operators(mixer, 32, replace(WORKLOAD, dropout=False, tp=2))
    sizes = [
        next(t.bytes for o in ops for t in o.saved if t.name == "attention_probabilities") for ops in (whole, half)
    ]
    assert sizes == [2 * SCORES, SCORES]


def test_dropout_before_the_residual_joins_the_addition_and_keeps_a_byte_an_element():
    fused = residual_add(own_lane(WORKLOAD), "add", 32, dropout=True)
    elements = 128 * 32
    assert [k.bytes for k in fused.forward] == [7 * elements]
    assert [k.bytes for k in fused.backward] == [6 * elements, 5 * elements]
    assert [t.bytes for t in fused.saved] == [elements]
    eager = residual_add(own_lane(replace(WORKLOAD, execution="eager")), "add", 32, dropout=True)
    assert [k.bytes for k in eager.forward] == [5 * elements, 6 * elements]
