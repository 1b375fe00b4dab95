"""fp8 matmuls in a forecast: what is gathered, held and refused. The small models are 1024 wide with four layers."""

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.program.stage import StageProgram

LINEAR = 4 * 1024 * 1024 + 3 * 1024 * 4096
NORMS = 2 * 1024
GATHERED = "training.float8={recipe: tensorwise, all_gather: true}"


def sent(program: StageProgram, name: str) -> float:
    (found,) = {float(np.max(t.collective.wire_bytes)) for t in program.tasks if t.name == name and t.collective}
    return found


def resident(program: StageProgram, key: str) -> float:
    return sum(float(np.max(a.bytes)) for a in program.resident if a.key == key)


def named(program: StageProgram, name: str) -> int:
    return sum(task.name == name for task in program.tasks)


def test_linear_weights_are_gathered_in_one_byte_and_norms_in_two(small: Small):
    for execution in ("compiled", "fused"):
        program = lower(small("dense", GATHERED, f"training.execution={execution}"))
        assert sent(program, "all-gather layer 1") == (LINEAR + 2 * NORMS) * 15 / 16
    plain = lower(small("dense", "training.float8={recipe: tensorwise}"))
    assert sent(plain, "all-gather layer 1") == 2 * (LINEAR + NORMS) * 15 / 16


def test_scales_of_gathered_weights_are_found_once_a_step(small: Small):
    program = lower(small("dense", GATHERED), 2)
    assert named(program, "scales of weights") == 1
    # One scale of 4 bytes for each of 7 matrices in 4 layers, all-reduced among 16.
    assert sent(program, "scales") == 2 * 4 * 7 * 4 * 15 / 16


def test_megatron_keeps_both_copies_beside_the_weights(small: Small):
    program = lower(small("dense", "training.zero=1", "training.float8.recipe=delayed"), 2)
    assert resident(program, "resident.fp8 copies") == 2 * 4 * LINEAR
    assert named(program, "cast weights") == 1
    assert sent(program, "all_gather dp_shard") == 2 * (4 * (LINEAR + NORMS) + 2 * 2048 * 1024 + 1024) * 15 / 16


def test_megatron_gathers_fp8_parameters_and_turns_them(small: Small):
    program = lower(small("dense", "training.zero=1", GATHERED), 2)
    assert resident(program, "resident.fp8 copies") == 0
    assert named(program, "cast weights") == 1
    whole = 4 * (LINEAR + 2 * NORMS) + 2 * (2 * 2048 * 1024 + 1024)
    assert sent(program, "all_gather dp_shard") == whole * 15 / 16


def test_experts_of_megatron_are_kept_and_gathered_in_fp8_as_well(small: Small):
    overrides = ("parallel.ep=8", "training.zero=1", "training.float8={recipe: blockwise, experts: true}")
    program = lower(small("mixture", *overrides))
    # Two of 16 experts: gate, up and down of 512 by 1024; attention's four matrices of 1024 by 1024.
    assert resident(program, "resident.fp8 copies") == 2 * 4 * (4 * 1024**2 + 2 * 3 * 512 * 1024)


def test_rows_travel_to_their_experts_in_half_the_bytes(small: Small):
    recipe = "recipe: blockwise, experts: true"
    plain, eight = (
        lower(small("mixture", "parallel.ep=8", f"training.float8={{{recipe}, dispatch: {on}}}"))
        for on in ("false", "true")
    )

    def fullest(program: StageProgram, name: str, phase: str) -> float:
        tasks = [t for t in program.tasks if (t.name, t.phase) == (name, phase) and t.collective]
        return max(float(np.max(t.collective.wire_bytes)) for t in tasks if t.collective)

    for step, share in (
        (("dispatch", "forward"), 33 / 64),
        (("combine", "forward"), 1),
        (("combine", "backward"), 33 / 64),
    ):
        assert fullest(eight, *step) == pytest.approx(share * fullest(plain, *step))


def test_a_recomputed_activation_is_not_kept_in_eight_bits(small: Small):
    overrides = ("parallel.ep=8", "training.zero=1", "training.float8={recipe: blockwise, experts: true}")
    saved = {}
    for modules in ("none", "{modules: [moe_act]}"):
        program = lower(small("mixture", *overrides, f"training.recompute={modules}"))
        ahead = [task for task in program.tasks if task.phase == "forward"]
        kept = [a for task in ahead for a in task.allocates if a.kind == "saved activations"]
        saved[modules] = sum(float(np.max(a.bytes)) for a in kept)
    assert saved["{modules: [moe_act]}"] < saved["none"]


def test_activations_in_fewer_bits_take_less_of_a_card(small: Small):
    overrides = ("parallel.ep=8", "training.zero=1", "training.recompute={modules: [moe_act]}")
    kept = {}
    for stored in ("[]", "[moe_act]", "[core_attn]", "[moe_act, core_attn]"):
        float8 = f"training.float8={{recipe: blockwise, experts: true, stored: {stored}}}"
        program = lower(small("mixture", *overrides, float8))
        ahead = [task for task in program.tasks if task.phase == "forward"]
        saved = [a for task in ahead for a in task.allocates if a.kind == "saved activations"]
        kept[stored] = sum(float(np.max(a.bytes)) for a in saved)
    alone = (kept["[]"] - kept["[moe_act]"], kept["[]"] - kept["[core_attn]"])
    assert min(alone) > 0
    assert kept["[]"] - kept["[moe_act, core_attn]"] == pytest.approx(sum(alone))


def test_eight_bits_take_less_time_than_sixteen_and_delayed_scales_less_than_own():
    settings = ((), ("training.float8.recipe=tensorwise",), ("training.float8.recipe=delayed",))
    base = "llama3-70b-fsdp-64xh100"
    times = [forecast(*read_scenario(base, overrides)).summary["step_time_s"]["p50"] for overrides in settings]
    assert times == sorted(set(times), reverse=True)


REFUSED = [
    (("training.float8.recipe=rowwise",), "training.float8.recipe: found rowwise, which no fused stack has"),
    (
        ("training.float8.recipe=mxfp8",),
        "but h100-sxm has no mxfp8 arithmetic; it has bf16, fp16, fp32, fp64, fp8, int8",
    ),
    (
        (
            "training.float8.recipe=rowwise",
            "training.execution=compiled",
            "cluster={node: atlas-950, fabric: atlas-950-superpods, accelerators: 64}",
        ),
        "training.float8.recipe: found rowwise, whose scales are worked out in fp64, of which ascend-950dt has no rate",
    ),
    (("training.float8.experts=true",), "training.float8.experts: llama has no routed experts; leave it out"),
    (
        ("training.float8={recipe: blockwise, all_gather: true}",),
        "training.float8.all_gather: found recipe blockwise with zero: 3; allowed: delayed, tensorwise",
    ),
    (
        ("training.float8={recipe: blockwise, stored: [moe_act]}", "training.recompute=none"),
        "training.float8.stored: llama keeps no expert_hidden; leave moe_act out",
    ),
    (
        ("training.float8={recipe: blockwise, stored: [core_attn]}", "training.recompute=full"),
        "training.float8.stored: recompute: full keeps neither; leave it out, or recompute modules",
    ),
    (
        ("training.float8={recipe: tensorwise, stored: [core_attn]}", "training.recompute=none"),
        "found recipe tensorwise and execution fused; allowed: blockwise and fused",
    ),
    (
        ("training.float8={recipe: blockwise, stored: [core_attn]}", "training.recompute={modules: [core_attn]}"),
        "core_attn is not kept where recompute.modules has core_attn; allowed: one or the other",
    ),
    (
        (
            "training.float8={recipe: blockwise, stored: [core_attn]}",
            "training.recompute=none",
            "parallel={dp_shard: 32, cp: 2}",
        ),
        "core_attn is known of whole sequences, found cp(2); allowed: cp: 1",
    ),
    (("training.float8.dense=false",), "training.float8.dense: found false, and experts too"),
    (
        ("training.float8={all_gather: true}", "training.lora={rank: 8}"),
        "training.float8.all_gather: is about weights that are trained, and lora freezes them",
    ),
    (
        ("training.float8={all_gather: true}", "training.zero=1", "training.execution=eager"),
        "training.float8.all_gather: with zero: 1 it is Megatron-LM's; allowed: execution fused",
    ),
]


@pytest.mark.parametrize(("overrides", "told"), REFUSED)
def test_what_no_stack_does_is_refused(overrides: tuple[str, ...], told: str):
    with pytest.raises(Refused) as refused:
        assemble_job(*read_scenario("llama3-70b-fsdp-64xh100", overrides))
    assert any(told in message for message in refused.value.messages), refused.value.messages


@pytest.mark.parametrize(
    ("float8", "told"),
    [
        ("{recipe: tensorwise, experts: true}", "torchao's grouped matmuls know no tensorwise scales"),
        ("{recipe: rowwise, dispatch: true}", "rows in fp8 are for experts in fp8; add experts: true"),
        ("{recipe: rowwise, experts: true, dispatch: true}", "found rowwise; allowed: recipe blockwise"),
    ],
)
def test_experts_and_their_rows_have_conditions(small: Small, float8: str, told: str):
    with pytest.raises(Refused) as refused:
        assemble_job(*small("mixture", "training.execution=eager", f"training.float8={float8}"))
    assert any(told in message for message in refused.value.messages), refused.value.messages


def test_a_part_without_fp8_is_told():
    overrides = ("cluster={node: hgx-a100, fabric: rail-fat-tree-400g, accelerators: 64}", "training.float8={}")
    with pytest.raises(Refused, match="a100-80g-sxm has no fp8 arithmetic"):
        assemble_job(*read_scenario("llama3-70b-fsdp-64xh100", overrides))
