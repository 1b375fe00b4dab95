import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job, micro_batches
from simulator.forecast.errors import Refused
from simulator.forecast.reading import read_scenario


@pytest.mark.parametrize(
    ("kind", "overrides", "messages"),
    [
        (
            "mixture",
            ("cluster.accelerators=24", "parallel.dp_shard=24", "training.global_batch_sequences=24", "parallel.ep=3"),
            ["parallel.ep: found 3, which does not divide the model's 16 experts; nearest: 2 or 4"],
        ),
        ("dense", ("parallel.ep=2",), ["parallel.ep: found 2, but llama has no routed experts; allowed: 1"]),
        (
            "dense",
            ("routing.synthetic.sigma=1",),
            ["routing.synthetic: llama has no routed experts to route to; leave it out"],
        ),
        (
            "dense",
            ("training.lora={targets: [attention, routed_expert, latent]}",),
            [
                "training.lora.targets: llama has no routed_expert weights; it has attention, mlp",
                "training.lora.targets: llama has no latent weights; it has attention, mlp",
            ],
        ),
        (
            "dense",
            ("training.optimizer={name: sgd, state_dtype: bf16}",),
            ["training.optimizer.state_dtype: sgd keeps no moments; leave it out"],
        ),
        (
            "dense",
            ("training.sequence_length=8193",),
            ["training.sequence_length: found 8193, the model takes at most 8192 positions"],
        ),
        (
            "dense",
            ("parallel.ep=2", "routing.trace=olmoe-c4", "training.sequence_length=9000"),
            [
                "parallel.ep: found 2, but llama has no routed experts; allowed: 1",
                "routing.trace: llama has no routed experts to route to; leave it out",
                "training.sequence_length: found 9000, the model takes at most 8192 positions",
            ],
        ),
        (
            "dense",
            ("parallel={tp: 16}",),
            ["parallel: tp(16) does not divide the heads of grouped attention: 8 / 16 = 0.50; "
             "the nearest degrees that do are 8"],
        ),
        (
            "dense",
            ("parallel={cp: 4, dp_shard: 4}", "training.sequence_length=2050"),
            ["parallel: cp(4) does not cut a sequence into 2 cp equal pieces: 2,050 / 8 = 256.25; "
             "the nearest degrees that do are 1 and 5"],
        ),
        (
            "mixture",
            ("cluster.accelerators=24", "parallel={dp_shard: 24, etp: 3}", "training.global_batch_sequences=24"),
            ["parallel: etp(3) does not divide the intermediate width of mixture of experts: 512 / 3 = 170.67; "
             "the nearest degrees that do are 2 and 4"],
        ),
        (
            "dense",
            ("parallel={pp: 16}",),
            ["parallel.pp: found 16, but the model has 4 layers; allowed: up to that"],
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_all_at_once(
    small: Small, kind: str, overrides: tuple[str, ...], messages: list[str]
) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small(kind, *overrides))
    assert list(caught.value.messages) == messages
    assert str(caught.value) == "\n".join(messages)


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("model=kimi-k3.2", "model: no model 'kimi-k3.2' (did you mean 'kimi-k3.1'?): neither a file nor one of"),
        ("cluster.node=hgx-h2000", "cluster.node: no node 'hgx-h2000' (did you mean 'hgx-h200'?)"),
        ("cluster.fabric=rail", "cluster.fabric: no fabric 'rail'"),
        ("routing.trace=olmoe-c5", "routing.trace: no routing trace 'olmoe-c5' (did you mean 'olmoe-c4'?)"),
    ],
)
def test_a_name_that_means_no_file_is_refused_with_the_nearest(small: Small, override: str, start: str) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small("mixture", override))
    (message,) = caught.value.messages
    assert message.startswith(start)


def test_half_a_node_beside_a_whole_one_is_refused(small: Small) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(
            *small("dense", "cluster.accelerators=12", "parallel.dp_shard=12", "training.global_batch_sequences=12")
        )
    (message,) = caught.value.messages
    assert message.startswith("cluster.accelerators: 12 accelerators are not whole nodes: ")
    assert message.endswith("nearest valid: 8 or 16")


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ((), 1),
        (("training.global_batch_sequences=128",), 8),
        (("training.global_batch_sequences=128", "training.micro_batch_sequences=2"), 4),
        (("training.global_batch_sequences=64", "parallel.dp_replicate=2", "parallel.dp_shard=8"), 4),
    ],
)
def test_micro_batches_of_a_step(small: Small, overrides: tuple[str, ...], count: int) -> None:
    assert micro_batches(small("dense", *overrides)[0]) == count


@pytest.mark.parametrize(("replicas", "behaviours"), [(1, 64), (2, 64), (4, 64)])
def test_behaviours_of_the_main_job_do_not_grow_with_its_replicas(replicas: int, behaviours: int) -> None:
    scenario, folder = read_scenario(
        "kimi-k3-lora-128xh200",
        [
            f"cluster.accelerators={128 * replicas}",
            f"parallel.dp_replicate={replicas}",
            f"training.global_batch_sequences={512 * replicas}",
        ],
    )
    folding = assemble_job(scenario, folder).folding
    assert (folding.behaviours, set(folding.ranks.tolist())) == (behaviours, {2 * replicas})


def test_ranks_whose_groups_lie_differently_on_the_nodes_are_told_apart(small: Small) -> None:
    # Groups of 3 on nodes of 8: some lie in one node, some across two.
    overrides = ("cluster.accelerators=24", "parallel.dp_shard=3", "parallel.dp_replicate=8")
    job = assemble_job(*small("dense", *overrides, "training.global_batch_sequences=24"))
    assert 1 < job.folding.behaviours < 24


def test_apart_every_rank_is_a_behaviour(small: Small) -> None:
    assert assemble_job(*small("mixture", "parallel.ep=8")).folding.behaviours == 8
    assert assemble_job(*small("mixture", "parallel.ep=8"), folded=False).folding.behaviours == 16
