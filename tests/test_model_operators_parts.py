from dataclasses import replace

import pytest
from model_operators import model, named, one

from simulator.model.architecture import DenseFeedForward, MixtureOfExperts, VisionTower
from simulator.model.operator import Operator, Saved, Workload, keep_once
from simulator.model.operators import vision
from simulator.model.operators.layers import component_operators, embedding_operators, loss_operators

LLAMA = model("llama-3.1-8b")
N, D, V = 8192, 4096, 128_256


def test_a_tensor_that_two_operators_keep_is_listed_once_for_both() -> None:
    wide = Operator("a", (), saved=(Saved("x", 8.0, "weight_gradient", ("a.weight",)),))
    thin = Operator("b", (), saved=(Saved("x", 8.0, "weight_gradient", ("b.weight",)), Saved("y", 2.0)))
    first, second = keep_once([wide, thin])
    assert first.saved == (Saved("x", 8.0, "weight_gradient", ("a.weight", "b.weight"), nodes=2),)
    assert second.saved == (Saved("y", 2.0),)


def test_a_tensor_that_some_input_gradient_needs_is_kept_whatever_is_frozen() -> None:
    linear = Operator("a", (), saved=(Saved("x", 8.0, "weight_gradient", ("a.weight",)),))
    gate = Operator("b", (), saved=(Saved("x", 8.0),))
    assert keep_once([linear, gate])[0].saved == keep_once([gate, linear])[0].saved == (Saved("x", 8.0, nodes=2),)


def test_gated_activation_reads_two_and_writes_one() -> None:
    part = DenseFeedForward(14_336)
    fused = one(component_operators(part, D, Workload((N,))), "activation")
    one_tensor = N * 14_336 * 2
    assert [k.bytes for k in fused.forward] == [3 * one_tensor]
    assert [k.bytes for k in fused.backward] == [5 * one_tensor]
    assert sum(s.bytes for s in fused.saved) == 2 * one_tensor
    eager = one(component_operators(part, D, Workload((N,), "eager")), "activation")
    assert [k.bytes for k in eager.forward] == [2 * one_tensor, 3 * one_tensor]
    assert sum(s.bytes for s in eager.saved) == 3 * one_tensor


def test_plain_feed_forward_has_two_products_of_its_width() -> None:
    operators = component_operators(DenseFeedForward(1856, "relu2", gated=False), 2688, Workload((64,), "eager"))
    assert [o.name for o in operators] == ["up", "activation", "down"]
    assert len(one(operators, "activation").forward) == 2


def test_a_grouped_product_carries_one_row_and_one_expert() -> None:
    operators = component_operators(MixtureOfExperts(128, 8, 768), 2048, Workload((64,)))
    kernel = one(operators, "experts_fc1").forward[0]
    assert (kernel.kind, kernel.shape) == ("grouped_gemm", (1536, 2048))
    assert (kernel.flops, kernel.bytes, kernel.fixed_bytes) == (2 * 1536 * 2048, 2 * (1536 + 2048), 2 * 1536 * 2048)


def test_copies_by_expert_run_only_where_experts_are_spread() -> None:
    operators = component_operators(MixtureOfExperts(128, 8, 768), 2048, Workload((64,)))
    assert [o.name for o in operators if o.expert_parallel_only] == ["sort_by_expert", "sort_by_source"]


def test_permute_writes_every_routed_row_of_the_rank() -> None:
    operators = component_operators(MixtureOfExperts(128, 8, 768), 2048, Workload((64,)))
    # 64 tokens read, 512 rows written, 2,048 dims in bf16
    assert one(operators, "permute").forward[0].bytes == (64 + 512) * 2048 * 2
    zero = MixtureOfExperts(512, 12, 2048, zero_experts=256)
    # two thirds of the choices reach an expert with weights
    assert one(component_operators(zero, 6144, Workload((64,))), "permute").output_bytes == 64 * 8 * 6144 * 2


def test_unfused_experts_keep_their_output_for_the_routing_weights() -> None:
    part = MixtureOfExperts(128, 8, 768)
    for execution, kept in (("eager", 1), ("compiled", 1), ("fused", 0)):
        operators = component_operators(part, 2048, Workload((64,), execution))  # type: ignore[arg-type]
        assert sum(s.name == "expert_output" for o in operators for s in o.saved) == kept


def test_a_gate_of_width_one_on_the_shared_experts() -> None:
    part = MixtureOfExperts(512, 10, 512, shared_experts=1, shared_intermediate=512, shared_gate=True)
    operators = component_operators(part, 2048, Workload((64,)))
    assert one(operators, "shared_gate_proj").forward[0].flops == 2 * 64 * 2048
    assert {s.name: s.bytes for s in one(operators, "shared_gate").saved} == {
        "shared_output": 64 * 2048 * 2,
        "shared_gate_logit": 64 * 2,
    }


def test_plain_loss_costs_6_n_d_v_and_needs_12_n_v_bytes() -> None:
    operators = loss_operators(LLAMA, Workload((N,), "eager"), "plain")
    head, widen, loss = named(operators, "lm_head", "logits_to_fp32", "cross_entropy")
    assert sum(k.flops for k in (*head.forward, *head.backward, *head.backward_weight)) == 6 * N * D * V
    logits = 2 * N * V
    assert head.output_bytes == logits
    assert sum(s.bytes for s in loss.saved) + loss.backward_workspace_bytes + widen.output_bytes == 12 * N * V
    head, loss = named(loss_operators(LLAMA, Workload((N,)), "plain"), "lm_head", "cross_entropy")
    assert head.output_bytes == sum(s.bytes for s in loss.saved) == logits
    assert loss.gradient_in_place


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "gib"),
    [(4096, 128_256, 1.4677744), (7168, 163_840, 2.5136728)],
)
def test_chunked_loss_needs_the_measured_peak(hidden: int, vocabulary: int, gib: float) -> None:
    architecture = model("llama-3.1-8b")
    architecture = type(architecture)("test", hidden, vocabulary, architecture.layers)
    loss = one(loss_operators(architecture, Workload((N,)), "chunked"), "chunked_cross_entropy")
    assert loss.workspace_bytes / 2**30 == pytest.approx(gib, rel=1e-4)
    products = [k for k in (*loss.forward, *loss.backward_weight) if k.kind == "gemm"]
    assert len(products) == 24
    assert sum(k.flops for k in products) == 6 * N * hidden * vocabulary


def test_the_last_chunk_of_the_loss_is_as_short_as_it_is() -> None:
    loss = one(loss_operators(LLAMA, Workload((1500,)), "chunked"), "chunked_cross_entropy")
    assert [k.shape[0] for k in loss.forward if k.kind == "gemm"] == [1024, 476, 1024, 476]


def test_a_loss_of_longer_chunks_needs_fewer_launches_and_more_room() -> None:
    short, long = (
        one(loss_operators(LLAMA, Workload((N,), loss_chunk_tokens=tokens), "chunked"), "chunked_cross_entropy")
        for tokens in (1024, 4096)
    )
    # Three fp32 tensors of a chunk's logits.
    assert long.workspace_bytes == 3 * 4 * 4096 * V
    assert [sum(k.launches for k in loss.forward) for loss in (short, long)] == [7 * N // 1024, 7 * N // 4096]
    assert sum(k.flops for k in short.forward) == sum(k.flops for k in long.forward)


def test_cut_loss_costs_8_n_d_v_and_keeps_no_logits() -> None:
    loss = one(loss_operators(LLAMA, Workload((N,)), "cut"), "cut_cross_entropy")
    products = [k for k in (*loss.forward, *loss.backward, *loss.backward_weight) if k.shape]
    assert sum(k.flops for k in products) == 8 * N * D * V
    assert sum(s.bytes for s in loss.saved) == N * (2 * D + 4)


def test_the_gradient_of_a_tied_table_is_summed_out_of_place() -> None:
    (tied,) = embedding_operators(replace(LLAMA, tied_embeddings=True), Workload((N,)))
    assert tied.backward_workspace_bytes == 2 * V * D
    assert embedding_operators(LLAMA, Workload((N,)))[0].backward_workspace_bytes == 0


def test_learnt_positions_are_a_table_of_their_own_whose_rows_are_added() -> None:
    _, positions = embedding_operators(replace(LLAMA, learnt_positions=100), Workload((N,)))
    assert [k.bytes for k in positions.forward] == [N * (2 * 2 * D + 8), 3 * 2 * N * D]
    assert positions.backward_weight[0].bytes == 2 * 100 * D
    assert positions.weights == ("model.embed_positions.weight",)


def test_the_embedding_is_dropped_out_where_the_rest_is() -> None:
    *_, dropped = embedding_operators(LLAMA, Workload((N,), dropout=True))
    assert [t.bytes for t in dropped.saved] == [N * D]
    assert [k.bytes for k in (*dropped.forward, *dropped.backward)] == 2 * [5 * N * D]


def test_embedding_gathers_rows_and_fills_a_gradient_as_large_as_itself() -> None:
    (embedding,) = embedding_operators(LLAMA, Workload((N,)))
    assert embedding.forward[0].bytes == N * (2 * 2 * D + 8)
    assert embedding.backward == ()
    assert embedding.backward_weight[0].bytes == 2 * V * D


K3_TOWER = VisionTower(
    27, 1024, 1536, 12, 4096, 14, output=7168, position_parameters=64 * 64 * 1024, bias=False, norm="rms",
    patch_bias=False, projector="patchmergerv2", projector_hidden=4096,
)  # fmt: skip


def test_vision_tower_of_kimi_k3() -> None:
    workload = Workload((1024,), image_patches=(1024, 256))
    operators = vision.operators(K3_TOWER, workload)
    patches, tokens = 1280, 320
    products = [o for o in operators if o.name in {"wqkv", "wo", "fc0", "fc1"}]
    # 29.4 MFLOP a patch and block: 2 (1024 x 4608 + 1536 x 1024 + 2 x 1024 x 4096)
    assert sum(o.forward[0].flops for o in products) == 27 * patches * 29_360_128
    cores = named(operators, "attention")
    assert sum(o.forward[0].flops for o in cores) == 27 * 4 * 1536 * (1024**2 + 256**2)
    assert one(operators, "patch_embed").forward[0].flops == patches * 2 * 3 * 14**2 * 1024
    assert one(operators, "patch_embed").backward == ()
    projector = named(operators, "proj.0", "proj.2")
    # 92.3 MFLOP a token: 2 (4096^2 + 4096 x 7168)
    assert sum(o.forward[0].flops for o in projector) == tokens * 92_274_688


def test_a_model_without_images_runs_no_vision_tower() -> None:
    assert vision.operators(K3_TOWER, Workload((1024,))) == ()
