"""Matmuls of experts one by one: each is launched, and the group takes as long as it does in one kernel."""

from small_jobs import Small, lower

from simulator.engine.task import Task

FRAMEWORK_NS, STACK_NS, BARE_NS = 31_000, 48_000, 9_850
"""Host time of a launch from eager code, from a hand-fused stack and from a library's loop, of an H200's sheet."""


def experts_fc1(small: Small, *overrides: str) -> list[Task]:
    tasks = lower(small("mixture", "parallel.ep=4", *overrides)).tasks
    return [task for task in tasks if task.name == "experts_fc1"]


def test_four_experts_are_one_call_and_three_launches_more(small: Small) -> None:
    tasks = experts_fc1(small, "training.grouped_gemm=per_expert")
    forward, backward = (next(task for task in tasks if task.phase == phase) for phase in ("forward", "backward"))
    assert forward.host_ns == STACK_NS + 3 * BARE_NS
    # Gradients of the inputs and of the weights.
    assert backward.host_ns == 2 * (STACK_NS + 3 * BARE_NS)


def test_one_kernel_is_the_default_but_under_zero_1(small: Small) -> None:
    assert experts_fc1(small)[0].host_ns == STACK_NS
    assert experts_fc1(small, "training.zero=1")[0].host_ns == STACK_NS + 3 * BARE_NS
    assert experts_fc1(small, "training.zero=1", "training.execution=eager")[0].host_ns == FRAMEWORK_NS


def test_the_device_takes_as_long(small: Small) -> None:
    one, each = (experts_fc1(small, f"training.grouped_gemm={way}")[0] for way in ("grouped", "per_expert"))
    assert (one.duration_ns == each.duration_ns).all()
