"""Linear layers in fp8: formats, casts and kept tensors of Llama 3 8B, of experts, and of rows on their way to them."""

import pytest
from model_operators import kernels, model, named, one

from simulator.model.architecture import DenseFeedForward, MixtureOfExperts
from simulator.model.float8 import Float8, takes_part
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.float8 import in_float8
from simulator.model.operators.layers import component_operators, layer_operators, loss_operators
from simulator.model.parameters import layer_parameters

LLAMA, MIXTURE = model("llama-3.1-8b"), model("qwen3-30b-a3b")
N, D, F = 8192, 4096, 14_336


def layer(execution: str, **float8: object) -> tuple[Operator, ...]:
    workload = Workload((N,), execution, float8=Float8(**float8))  # type: ignore[arg-type]
    return layer_operators(LLAMA, LLAMA.layers[0], workload)


def mixture(**float8: object) -> tuple[Operator, ...]:
    return mixture_operators(Workload((N,), float8=Float8("blockwise", **float8)))  # type: ignore[arg-type]


def mixture_operators(workload: Workload) -> tuple[Operator, ...]:
    return in_float8(component_operators(MixtureOfExperts(128, 8, 768), 2048, workload), workload)


def passes(found: tuple[Kernel, ...]) -> list[tuple[str, float]]:
    return [(kernel.kind, kernel.bytes + kernel.fixed_bytes) for kernel in found]


def saved(operators: tuple[Operator, ...]) -> dict[str, float]:
    return {tensor.name: tensor.bytes for operator in operators for tensor in operator.saved}


def test_products_read_one_byte_and_write_two():
    down = one(layer("fused", recipe="delayed"), "down")
    product = next(k for k in down.forward if k.kind == "gemm")
    assert (product.dtype, product.shape) == ("fp8", (N, D, F))
    assert product.bytes == N * F + F * D + 2 * N * D
    gradient = next(k for k in down.backward_weight if k.kind == "gemm")
    assert gradient.bytes == D * N + N * F + 2 * D * F


def test_linear_layers_alone_take_part():
    eight = {o.name for o in layer("fused", recipe="delayed") if any(k.dtype == "fp8" for k in kernels(o))}
    assert eight == {"qkv_proj", "o_proj", "gate_up", "down"}
    head = loss_operators(LLAMA, Workload((N,), float8=Float8("delayed")), "plain")
    assert not any(k.dtype == "fp8" for operator in head for k in kernels(operator))


def test_router_and_experts_stay_bf16_unless_experts_are_asked_for():
    names = {True: {"experts_fc1", "experts_fc2"}, False: set()}
    for experts, found in names.items():
        operators = mixture(experts=experts)
        eight = {o.name for o in operators if any(k.dtype.startswith("fp8") for k in kernels(o))}
        assert eight == found


def test_experts_alone_may_take_part():
    workload = Workload((N,), float8=Float8("mxfp8", dense=False, experts=True))
    parts = MIXTURE.layers[0]
    operators = layer_operators(MIXTURE, parts, workload)
    assert {o.name for o in operators if any(k.dtype == "fp8/mx" for k in kernels(o))} == {"experts_fc1", "experts_fc2"}


def test_a_fused_stack_makes_both_copies_at_once_and_keeps_the_one_for_the_gradient_of_the_weight():
    plain = layer_operators(LLAMA, LLAMA.layers[0], Workload((N,)))
    eight = layer("fused", recipe="delayed", kept=True, keeps_cast_input=True)
    down = one(eight, "down")
    assert passes(down.forward[:-1]) == [("quantize", 4 * N * F)]
    assert passes(down.backward[:-1]) == [("quantize", 4 * N * D)]
    assert passes(down.backward_weight)[:-1] == []
    kept = {name: size for name, size in saved(eight).items() if name.endswith(".fp8")}
    assert kept == {"qkv_proj.fp8": N * D, "o_proj.fp8": N * D, "gate_up.fp8": N * D, "down.fp8": N * F}
    # Attention's own result stays in bf16 for attention's gradient; the inputs of the others are gone.
    gone = set(saved(plain)) - set(saved(eight))
    assert gone == {"mixer_input", "feed_forward_input", "activated"}


def test_an_input_that_is_recomputed_is_kept_as_it_is_and_cast_again():
    eight = layer("fused", recipe="delayed", kept=True, keeps_cast_input=True, originals=frozenset({"activated"}))
    down = one(eight, "down")
    assert saved(eight)["activated"] == 2 * N * F
    assert passes(down.forward[:-1]) == passes(down.backward_weight[:-1]) == [("quantize", 3 * N * F)]


def test_own_scales_cost_a_pass_for_the_largest_value():
    down = one(layer("fused", recipe="tensorwise", kept=True), "down")
    assert passes(down.forward[:-1]) == [("amax", 2 * N * F), ("quantize", 4 * N * F)]


@pytest.mark.parametrize(("recipe", "scale_bytes"), [("blockwise", 4 / 128), ("mxfp8", 1 / 32)])
def test_scales_of_blocks_are_moved_and_kept(recipe: str, scale_bytes: float):
    eight = layer("fused", recipe=recipe, kept=True, keeps_cast_input=True)
    assert passes(one(eight, "down").forward[:-1]) == [("quantize", (4 + 2 * scale_bytes) * N * F)]
    assert saved(eight)["down.fp8"] == (1 + scale_bytes) * N * F


def test_a_compiler_casts_a_shared_input_once_and_keeps_it_in_bf16():
    eight = layer("compiled", recipe="tensorwise")
    x, w = N * D, D * D
    cast = [("amax_compiled", 2), ("quantize", 3)]
    q, k, _ = named(eight, "q_proj", "k_proj", "v_proj")
    assert passes(q.forward[:-1]) == [(kind, b * size) for size in (x, w) for kind, b in cast]
    assert passes(k.forward[:-1]) == [(kind, b * D * 1024) for kind, b in cast]
    assert passes(q.backward)[:3] == [
        ("amax_compiled", 2 * x), ("quantize_transposed", 4 * x), ("quantize_transposed", 3 * w)
    ]  # fmt: skip
    assert passes(q.backward_weight[:-1]) == [("quantize_transposed", 3 * x)]
    assert saved(eight)["mixer_input"] == 2 * x


def test_a_scale_a_row_casts_along_both_widths():
    q = one(layer("compiled", recipe="rowwise"), "q_proj")
    assert passes(q.forward[:-1]) == [("quantize_rows", 3 * N * D), ("quantize_rows", 3 * D * D)]
    assert passes(q.backward_weight[:1]) == [("quantize_columns", 5 * N * D)]


def test_weights_that_come_in_fp8_are_only_turned():
    q = one(layer("compiled", recipe="tensorwise", gathered=True), "q_proj")
    assert [kind for kind, _ in passes(q.forward)] == ["amax_compiled", "quantize", "gemm"]
    assert passes(q.backward)[2] == ("quantize_transposed", 2 * D * D)


def test_an_eager_stack_runs_each_step_of_a_cast_and_copies_transposed_operands():
    down = one(layer("eager", recipe="tensorwise", gathered=True), "down")
    *cast, small, product = down.forward
    assert sum(k.bytes for k in cast) == (4 + 2 + 6 + 8 + 8 + 5) * N * F
    assert (small.launches, product.kind) == (6, "gemm")
    assert ("transpose", 2 * N * F) in passes(down.backward_weight)
    assert down.workspace_bytes >= 8 * N * F


def test_experts_carry_casts_of_one_row_and_of_one_expert():
    fc2 = one(mixture(experts=True), "experts_fc2")
    x, w, product = fc2.forward
    assert (x.bytes, x.fixed_bytes) == ((4 + 8 / 128) * 768, 0)
    assert (w.bytes, w.fixed_bytes) == (0, (3 + 4 / 128) * 768 * 2048)
    assert (product.bytes, product.fixed_bytes) == (768 + 2 * 2048, 768 * 2048)


def test_rows_travel_in_fp8_and_come_home_in_bf16():
    bf16, eight = (mixture(experts=True, dispatch=dispatch) for dispatch in (False, True))
    share = (1 + 4 / 128) / 2
    for name, ahead, back in (("dispatch", share, 1), ("combine", 1, share)):
        before, after = one(bf16, name), one(eight, name)
        assert after.payload_bytes == before.payload_bytes * ahead == 2 * 2048 * ahead
        assert after.backward_payload_bytes == 2 * 2048 * back
    tokens, rows = N * 2048 * 2, 8 * N * 2048 * 2
    assert passes(one(eight, "permute").forward) == [
        ("quantize_blocks", tokens * (1 + share)), ("gather", (tokens + rows) * share)
    ]  # fmt: skip
    assert passes(one(eight, "unpermute").backward) == passes(one(eight, "permute").forward)
    # What arrives in fp8 is turned for the gradient of the weight, not cast.
    assert one(eight, "experts_fc1").forward[0].bytes == 2 * 2048
    assert one(eight, "experts_fc2").backward[0].bytes == 2 * 2048


def test_ranks_that_share_experts_gather_rows_in_fp8_and_add_up_in_bf16():
    workload = Workload((N,), etp=2, float8=Float8("blockwise", experts=True, dispatch=True))
    before, behind = named(mixture_operators(workload), "tp_gather", "tp_scatter")
    row, small = 2 * 2048, (1 + 4 / 128) * 2048
    assert (before.forward_collectives[0].bytes, before.backward_collectives[0].bytes) == (small, row)
    assert (behind.forward_collectives[0].bytes, behind.backward_collectives[0].bytes) == (row, small)
    assert before.output_bytes == small


def test_widths_that_tensor_cores_cannot_take_stay_bf16():
    workload = Workload((N,), float8=Float8("delayed"))
    operators = in_float8(component_operators(DenseFeedForward(1004), D, workload), workload)
    assert not any(k.dtype == "fp8" for operator in operators for k in kernels(operator))


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "kimi-linear-48b-a3b", "mixtral-8x7b"]
)
def test_the_weights_that_are_gathered_in_fp8_are_those_that_multiply_in_it(name: str):
    architecture = model(name)
    for one_layer in architecture.layers:
        workload = Workload((64,), "eager", float8=Float8("tensorwise"))
        operators = layer_operators(architecture, one_layer, workload)
        multiplied = {w for o in operators for w in o.weights if any(k.dtype == "fp8" for k in o.forward)}
        gathered = {p.name for p in layer_parameters(architecture, one_layer) if takes_part(p)}
        assert {w for w in multiplied if not w.endswith("bias")} == gathered
