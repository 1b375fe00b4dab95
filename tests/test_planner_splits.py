from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_jobs import Small, write_small

from simulator.forecast.assembly import assemble_job
from simulator.planner.candidates import candidates, for_any_sharding, job_of_any_split
from simulator.planner.splits import OWN, Split, Splits, divisors, enumerate_splits


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return write_small(tmp_path)


def _splits(small: Small, kind: str, cards: int, batch: int, length: int = 2048) -> set[Split]:
    read = small(kind, f"cluster.accelerators={cards}", f"parallel.dp_shard={cards}")
    job = assemble_job(*read)
    found = enumerate_splits(job.architecture, job.cluster, sequence_length=length, global_batch_sequences=batch)
    splits = [found.split(number) for number in range(len(found))]
    assert len(set(splits)) == len(splits)
    return set(splits)


def test_a_dense_model_on_two_cards_has_sixteen_splits(small: Small) -> None:
    # Batch 2, length 2048, so that cp 2 leaves 1024 tokens a card. By hand, (axes): knobs
    #   dp_shard 2: ZeRO 3 or 1, recompute or not, 1 sequence at once: 4
    #   dp_replicate 2: nothing is sharded, so ZeRO 1 alone: 2
    #   tp 2: ZeRO 1, recompute or not, 1 or 2 sequences at once: 4
    #   cp 2: weights are sharded over cp: ZeRO 3 or 1, recompute or not, sequences are cut, so 1 at once: 4
    #   pp 2: ZeRO 1, recompute or not, two micro-batches at least, so 1 sequence at once: 2
    splits = _splits(small, "dense", 2, 2)
    assert len(splits) == 4 + 2 + 4 + 4 + 2
    axes = {axis: sum(getattr(s, axis) == 2 for s in splits) for axis in ("dp_shard", "dp_replicate", "tp", "cp", "pp")}
    assert axes == {"dp_shard": 4, "dp_replicate": 2, "tp": 4, "cp": 4, "pp": 2}


def test_experts_double_what_can_be_split(small: Small) -> None:
    # As above, with ep and etp inside dp_shard x cp x tp = 2: (1,1), (1,2), (2,1), and (1,1) where that is 1.
    #   dp_shard 2: 3 x 2 (ZeRO) x 2 = 12, cp 2: 12
    #   tp 2: experts of (1,1) are whole on 2 ranks and so sharded: 2 x 2 x 2 = 8; (1,2) and (2,1): nothing left to
    #   shard, ZeRO 1: 2 x 2 x 2 = 8
    #   dp_replicate 2: 2, pp 2: 2
    assert len(_splits(small, "mixture", 2, 2)) == 12 + 12 + 16 + 2 + 2


def test_a_sequence_is_not_cut_into_pieces_shorter_than_1024(small: Small) -> None:
    assert {split.cp for split in _splits(small, "dense", 8, 8)} == {1, 2}


def test_tensor_parallel_stays_in_the_node_and_divides_heads(small: Small) -> None:
    # 8 heads, nodes of 8: tp up to 8 on 16 cards. Four layers: pp up to 4.
    splits = _splits(small, "dense", 16, 16)
    assert {split.tp for split in splits} == {1, 2, 4, 8}
    assert {split.pp for split in splits} == {1, 2, 4}


def test_every_split_has_all_cards_and_whole_micro_batches(small: Small) -> None:
    for split in _splits(small, "mixture", 16, 32):
        assert split.dp_replicate * split.dp_shard * split.tp * split.cp * split.pp == 16
        assert split.dp_shard * split.cp * split.tp % (split.ep * split.etp) == 0
        assert 16 % split.ep == 0
        once = split.dp_replicate * split.dp_shard * split.micro_batch_sequences
        assert 32 % once == 0
        assert 32 // once >= split.pp


def test_columns_give_distinct_values_and_which_each_has() -> None:
    first = Split(1, 2, 1, 1, 1, 1, 1, 3, 0, 1)
    second = Split(1, 1, 2, 1, 1, 1, 1, 1, 0, 1)
    splits = Splits.of([first, second, first])
    keys, which = splits.numbered("tp", "zero")
    assert keys == [(1, 3), (2, 1)]
    assert which.tolist() == [0, 1, 0]
    assert splits.split(1) == second
    assert len(splits.only(splits["tp"] == 1)) == 2


def test_divisors_of_twelve() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        # Sharded, whether in stages or not, and with ZeRO-3: PyTorch's checkpoint is not Megatron-LM's.
        ("{keep: matmuls}", lambda split: split.zero == 3),
        # Two stages have two layers each, four have one.
        ("{every: 2}", lambda split: split.pp <= 2),
        # Where sequences are cut, keys and values are gathered.
        ("{modules: [core_attn]}", lambda split: split.cp == 1),
        ("full", lambda split: False),
    ],
)
def test_the_recomputation_of_the_scenario_is_tried_where_it_can_be(
    small: Small, asked: str, allowed: Callable[[Split], bool]
) -> None:
    job = assemble_job(*small("dense", f"training.recompute={asked}"))
    found = enumerate_splits(
        job.architecture, job.cluster, sequence_length=2048, global_batch_sequences=16, own=job.recompute
    )
    splits = [found.split(number) for number in range(len(found))]
    own = {split for split in splits if split.recompute == OWN}
    others = {replace(split, recompute=OWN) for split in splits}
    assert own == {split for split in others if allowed(split)}
    assert all("training.recompute" not in split.settings() for split in own)


def test_weights_gathered_as_megatron_does_are_planned_with_its_optimizer_alone(small: Small) -> None:
    asked = "training.float8={recipe: blockwise, all_gather: true}"
    scenario, folder = small("dense", "training.zero=1", "training.execution=fused", asked)
    any_sharding = for_any_sharding(scenario)
    splits = candidates(any_sharding, job_of_any_split(any_sharding, folder))
    assert set(splits["zero"].tolist()) == {1}
