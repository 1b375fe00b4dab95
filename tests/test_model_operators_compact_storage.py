"""Two activations of DeepSeek-V3 kept in fewer bits, and the casts around them: one layer and 4,096 tokens."""

import pytest
from model_operators import model, one

from simulator.model.float8 import Float8
from simulator.model.operator import Operator, Workload
from simulator.model.operators.attention_core import ATTENTION_OUTPUT
from simulator.model.operators.lane import EXPERT_HIDDEN
from simulator.model.operators.layers import layer_operators

MODEL = model("deepseek-v3")
TOKENS, OUTPUT, HIDDEN = 4096, 128 * 128, 2 * 2048
SCALE = 4 / 128
BOTH = frozenset({EXPERT_HIDDEN, ATTENTION_OUTPUT})


def layer(stored: frozenset[str], originals: frozenset[str] = frozenset()) -> tuple[Operator, ...]:
    float8 = Float8("blockwise", experts=True, kept=True, keeps_cast_input=True, originals=originals, stored=stored)
    return layer_operators(MODEL, MODEL.layers[10], Workload((TOKENS,), float8=float8, megatron=True))


def saved(operators: tuple[Operator, ...]) -> dict[str, float]:
    return {tensor.name: tensor.bytes for operator in operators for tensor in operator.saved}


def casts(operator: Operator) -> tuple[list[float], list[float]]:
    """Bytes of the casts of blocks, forward and backward."""
    forward, backward = operator.forward, operator.backward
    return tuple([k.bytes for k in way if k.kind == "quantize_blocks"] for way in (forward, backward))  # type: ignore[return-value]


def test_rows_before_the_activation_take_eight_bits_and_a_scale():
    row = HIDDEN * (1 + SCALE)
    assert saved(layer(frozenset()))[EXPERT_HIDDEN] == HIDDEN * 2
    found = layer(BOTH)
    assert saved(found)[EXPERT_HIDDEN] == row
    assert casts(one(found, "experts_fc1"))[0] == [HIDDEN * 2 + row]
    assert casts(one(found, "experts_activation")) == ([], [HIDDEN * 2 + row])


def test_attention_and_the_product_behind_it_share_an_output_of_twelve_bits():
    small = TOKENS * OUTPUT * (1.5 + SCALE)
    before = saved(layer(frozenset()))
    assert (before[ATTENTION_OUTPUT], before["o_proj.fp8"]) == (TOKENS * OUTPUT * 2, TOKENS * OUTPUT * (1 + SCALE))
    found = layer(BOTH, originals=frozenset({ATTENTION_OUTPUT}))
    assert saved(found)[ATTENTION_OUTPUT] == small
    assert "o_proj.fp8" not in saved(found)
    moved = TOKENS * OUTPUT * 2 + small
    assert casts(one(found, "attention")) == ([moved], [moved])


def test_a_layer_keeps_a_quarter_less_of_a_token():
    # Of 221 KB with norms and projections run again; a token has 8 rows.
    def of_a_token(operators):
        rows = {True: 8.0, False: 1 / TOKENS}
        return sum(t.bytes * rows[o.rows == "routed"] for o in operators for t in o.saved)

    spared = of_a_token(layer(frozenset())) - of_a_token(layer(BOTH, originals=frozenset({ATTENTION_OUTPUT})))
    assert spared == pytest.approx(8 * HIDDEN * (1 - SCALE) + OUTPUT * (3 + SCALE - 1.5 - SCALE))


def test_the_last_kernel_of_a_linear_layer_is_its_product():
    assert one(layer(BOTH), "experts_fc1").forward[-1].kind == "grouped_gemm"
