from model_operators import model

from simulator.model.architecture import (
    BlockSparseAttention,
    DenseFeedForward,
    GroupedAttention,
    LatentAttention,
    MixtureOfExperts,
)
from simulator.model.parameters import embedding_parameters, layer_parameters
from simulator.model.split import share, share_model, split_problems

LLAMA = model("llama-3.1-8b")


def test_heads_are_divided_and_scarce_key_value_heads_copied() -> None:
    attention = GroupedAttention(32, 8, 128)
    assert share(attention, 4) == GroupedAttention(8, 2, 128)
    assert share(attention, 16) == GroupedAttention(2, 1, 128)
    sparse = BlockSparseAttention(attention, 128, 16, 4, 128)
    assert share(sparse, 8) == BlockSparseAttention(GroupedAttention(4, 1, 128), 128, 16, 1, 128)


def test_latents_stay_whole() -> None:
    assert share(LatentAttention(128, 1536, 512, 128, 64, 128), 8) == LatentAttention(16, 1536, 512, 128, 64, 128)


def test_routed_experts_are_divided_by_etp_and_shared_ones_by_tp() -> None:
    part = MixtureOfExperts(256, 8, 2048, shared_experts=1, shared_intermediate=2048)
    assert share(part, 8, 2) == MixtureOfExperts(256, 8, 1024, shared_experts=1, shared_intermediate=256)
    assert share(DenseFeedForward(14_336), 8) == DenseFeedForward(1792)


def test_degrees_that_divide_give_no_problems() -> None:
    assert split_problems(LLAMA, 8, 4, 1, (8192, 4096)) == []
    assert split_problems(LLAMA, 16, 1, 1) == []
    assert split_problems(model("deepseek-v3"), 16, 8, 8) == []


def problem(axis: str, what: str, arithmetic: str, nearest: str) -> str:
    return f"{axis} does not divide {what}: {arithmetic}; the nearest degrees that do are {nearest}"


def test_every_problem_says_the_arithmetic_and_the_nearest_degrees() -> None:
    *heads_and_widths, sequence = split_problems(LLAMA, 12, 3, 1, (4096,))
    assert heads_and_widths == [
        problem("tp(12)", "the heads of grouped attention", "32 / 12 = 2.67", "8 and 16"),
        problem("tp(12)", "the key-value heads of grouped attention", "8 / 12 = 0.67", "8 and 16"),
        problem("tp(12)", "the intermediate width of dense feed forward", "14,336 / 12 = 1194.67", "8 and 14"),
    ]
    assert sequence.startswith("cp(3) does not cut a sequence into 2 cp equal pieces: 4,096 / 6 = 682.67; ")
    assert sequence.endswith("are 2 and 4")


def test_experts_too_narrow_for_etp_and_a_vocabulary_that_does_not_divide() -> None:
    mixtral = model("mixtral-8x7b")
    width = problem("etp(5)", "the intermediate width of mixture of experts", "14,336 / 5 = 2867.20", "4 and 7")
    assert split_problems(mixtral, 1, 1, 5) == [width]
    assert problem("tp(3)", "the vocabulary", "32,000 / 3 = 10666.67", "2 and 4") in split_problems(mixtral, 3, 1, 1)


def test_parameters_of_a_rank_are_its_part_of_every_matrix_that_is_split() -> None:
    whole, held = LLAMA, share_model(LLAMA, 8)
    ours, theirs = ({p.name: p.shape for p in layer_parameters(m, m.layers[0])} for m in (held, whole))
    assert ours["self_attn.q_proj.weight"] == (512, 4096)
    assert ours["self_attn.k_proj.weight"] == (128, 4096)
    assert ours["mlp.down_proj.weight"] == (4096, 1792)
    assert ours["input_layernorm.weight"] == theirs["input_layernorm.weight"]
    (rows,) = embedding_parameters(held)
    assert rows.shape == (16_032, 4096)
    deepseek = share_model(model("deepseek-v3"), 8, 2)
    shapes = {p.name: p.shape for p in layer_parameters(deepseek, deepseek.layers[5])}
    assert shapes["self_attn.q_a_proj.weight"] == (1536, 7168)
    assert shapes["self_attn.q_b_proj.weight"] == (16 * 192, 1536)
    assert shapes["mlp.experts.down_proj"] == (256, 1024, 7168)
