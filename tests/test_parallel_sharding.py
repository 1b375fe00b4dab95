import pytest

from simulator.model.parameter import Parameter
from simulator.parallel.sharding import Adapter, Matrix, ShardGroup, shard_group


def matrix(*shape: int) -> Parameter:
    return Parameter("weight", shape, "attention", linear=True)


def experts(*shape: int) -> Parameter:
    return Parameter("mlp.experts.up_proj", shape, "routed_expert")


def frozen(ranks: int, *parameters: Parameter, ep: int = 1) -> ShardGroup:
    return shard_group("layer", "dp_shard", ranks, parameters, [], ep=ep)


@pytest.mark.parametrize(
    ("shape", "ranks", "shard"),
    [
        ((7, 3), 4, 2 * 3),
        ((8, 3), 4, 2 * 3),
        ((1, 7168), 128, 7168),
        ((576, 7168), 128, 5 * 7168),
        ((5,), 4, 2),
        ((12288, 1, 4), 128, 96 * 4),
        ((3, 1, 4), 8, 1 * 4),
        ((7, 3), 1, 21),
    ],
)
def test_dim_0_is_cut_in_equal_parts_and_padded(shape: tuple[int, ...], ranks: int, shard: int) -> None:
    group = frozen(ranks, matrix(*shape))
    assert group.frozen_shard == shard
    assert group.gathered_bytes == 2 * shard * ranks


def test_each_parameter_is_padded_by_itself() -> None:
    group = frozen(4, matrix(7, 3), matrix(5))
    assert (group.elements, group.frozen_shard, group.gathered_bytes, group.parameters) == (26, 8, 64, 2)


def test_whole_experts_are_kept_together_while_there_are_enough() -> None:
    # 896 experts over ep 64 leave 14 on a rank; two ranks take 7 of them each.
    group = frozen(2, experts(896, 3584, 3072), ep=64)
    assert group.elements == 14 * 3584 * 3072
    assert group.frozen_shard == 7 * 3584 * 3072


def test_fewer_experts_than_ranks_are_cut_along_dim_1() -> None:
    # 14 experts among 16 ranks: 3584 / 16 = 224 rows of each expert. Among 15, 239 rows, padded.
    assert frozen(16, experts(896, 3584, 3072), ep=64).frozen_shard == 14 * 224 * 3072
    assert frozen(15, experts(896, 3584, 3072), ep=64).frozen_shard == 14 * 239 * 3072


def test_expert_parallelism_divides_routed_experts_and_nothing_else() -> None:
    group = frozen(2, matrix(64, 8), experts(64, 8, 8), ep=8)
    assert group.elements == 64 * 8 + 64 // 8 * 8 * 8


def test_experts_that_do_not_divide_raise() -> None:
    with pytest.raises(ValueError, match="10 experts do not divide among ep 4"):
        frozen(2, experts(10, 8, 8), ep=4)


def test_an_adapter_beside_a_linear_layer() -> None:
    adapter = Adapter(matrix(12288, 7168), rank=8)
    assert adapter.widths == (7168, 12288)
    assert [factor.shape for factor in adapter.factors] == [(8, 7168), (12288, 8)]


def test_an_adapter_beside_experts_has_a_pair_for_each() -> None:
    adapter = Adapter(experts(896, 3584, 3072), rank=8)
    assert adapter.widths == (3584, 3072)
    assert [factor.shape for factor in adapter.factors] == [(896, 8, 3584), (896, 3072, 8)]
    assert {factor.role for factor in adapter.factors} == {"routed_expert"}


def test_factor_a_of_rank_8_is_padded_sixteenfold_over_128_ranks() -> None:
    a, b = Adapter(matrix(12288, 7168), rank=8).factors
    group = shard_group("layer", "dp_shard", 128, [], [a, b])
    assert group.trained_elements == 8 * 7168 + 12288 * 8
    assert group.trained_shard == 1 * 7168 + 96 * 8
    assert group.gathered_bytes == 2 * (128 * 7168 + 12288 * 8)


def test_hidden_matrices_are_those_of_layers_and_each_expert_s() -> None:
    table, scale = Parameter("embed", (32, 16), "embedding"), Parameter("norm", (16,), "norm")
    kernel = Parameter("conv.weight", (8, 1, 4), "attention")
    group = shard_group("layer", "efsdp", 4, [], [matrix(16, 12), experts(8, 16, 4), table, scale, kernel], ep=2)
    found = [share.matrix for share in group.trained]
    assert found == [Matrix(16, 12), Matrix(16, 4, 4), None, None, Matrix(8, 4)]
    assert [m.elements for m in found if m] == [192, 256, 32]
