import pytest
from small_jobs import Small, lower

from simulator.program.stage import StageProgram
from simulator.program.update import Owned, Ownership, share_out

OWNED = 71_312_384 / 16
"""Trained elements of the small dense model, shared by 16 ranks."""
CORE = 18.6e9


def moved(program: StageProgram, kind: str) -> dict[str, float]:
    tasks = [task for task in program.tasks if task.kind == kind and task.phase == "optimizer"]
    return {task.name: float(task.collective.wire_bytes) for task in tasks}


def born(program: StageProgram, tier: str) -> float:
    return sum(float(item.bytes) for item in program.born if item.tier == tier)


def test_megatron_sends_gradients_out_and_takes_master_weights_back(small: Small) -> None:
    program = lower(small("dense", "training.zero=1", "training.offload.optimizer=1"))
    assert moved(program, "copy_out") == {"gradients out": pytest.approx(4 * OWNED)}
    assert moved(program, "cpu_optimizer") == {"cpu AdamW": pytest.approx(28 * OWNED)}
    assert moved(program, "copy_in") == {"parameters in": pytest.approx(4 * OWNED)}
    (sweep,) = (task for task in program.tasks if task.kind == "cpu_optimizer")
    assert int(sweep.duration_ns[0]) == pytest.approx(28 * OWNED / CORE * 1e9, rel=1e-6)
    assert not any(task.kind == "optimizer" for task in program.tasks)


def test_two_cores_take_half_the_time(small: Small) -> None:
    settings = ("training.zero=1", "training.offload.optimizer=1", "training.offload.threads=2")
    (sweep,) = (task for task in lower(small("dense", *settings)).tasks if task.kind == "cpu_optimizer")
    assert int(sweep.duration_ns[0]) == pytest.approx(14 * OWNED / CORE * 1e9, rel=1e-6)


def test_moments_leave_the_card_and_master_weights_stay(small: Small) -> None:
    plain, away = (lower(small("dense", "training.zero=1", *more)) for more in ((), ("training.offload.optimizer=1",)))
    assert born(plain, "hbm") == born(away, "ddr") == pytest.approx(8 * OWNED)
    assert born(away, "hbm") == 0
    on_card = [{a.key: a.bytes for a in p.resident if a.tier == "hbm"} for p in (plain, away)]
    assert on_card[0] == on_card[1]
    # Pinned copies of master weights and gradients, each tensor rounded up to a power of two.
    pinned = {a.key: float(a.bytes) for a in away.resident if a.tier == "ddr"}
    assert set(pinned) == {"resident.master weights on host", "resident.gradients on host"}
    assert 4 * OWNED <= pinned["resident.gradients on host"] < 8 * OWNED


def test_the_host_gets_whole_tensors_until_it_has_its_share() -> None:
    owned = Ownership((Owned(40.0, True), Owned(30.0, True), Owned(20.0, True), Owned(10.0, False)))
    card, host = share_out(owned, 0.5)
    assert [tensor.elements for tensor in host.tensors] == [40.0, 30.0]
    assert [tensor.elements for tensor in card.tensors] == [20.0, 10.0]
    assert share_out(owned, 1.0)[0].tensors == ()
    assert share_out(owned, 0.0) == (owned, Ownership(()))


def test_card_and_host_update_a_part_each(small: Small) -> None:
    program = lower(small("dense", "training.zero=1", "training.offload.optimizer=0.5"))
    on_host = moved(program, "cpu_optimizer")["cpu AdamW"] / 28
    assert 0.5 * OWNED <= on_host < 0.8 * OWNED
    assert any(task.kind == "optimizer" for task in program.tasks)
    assert born(program, "hbm") + born(program, "ddr") == pytest.approx(8 * OWNED)
    assert born(program, "ddr") == pytest.approx(8 * on_host)


def test_deepspeed_scales_updates_casts_and_copies_pageable_memory(small: Small) -> None:
    program = lower(small("dense", "training.offload.optimizer=1"))
    assert moved(program, "cpu_pass") == {
        "scale gradients on cpu": pytest.approx(8 * OWNED, rel=1e-3),
        "cast parameters on cpu": pytest.approx(8 * OWNED, rel=1e-3),
    }
    assert moved(program, "cpu_optimizer") == {"cpu AdamW": pytest.approx(28 * OWNED, rel=1e-3)}
    (copy,) = (task for task in program.tasks if task.name == "parameters in")
    assert float(copy.collective.wire_bytes) == pytest.approx(2 * OWNED, rel=1e-3)
    # 6.6 GB/s and 6 us.
    assert int(copy.duration_ns[0]) == pytest.approx(2 * OWNED / 6.6 + 6000, rel=1e-3)


def test_an_update_step_by_step_passes_memory_three_times_as_often(small: Small) -> None:
    settings = ("training.offload.parameters=true", "training.optimizer.implementation=foreach")
    fused, foreach = (lower(small("dense", *chosen)) for chosen in (settings[:1], settings))
    assert moved(fused, "cpu_optimizer")["cpu AdamW"] == pytest.approx(28 * OWNED, rel=1e-3)
    assert moved(foreach, "cpu_optimizer")["cpu AdamW"] == pytest.approx(88 * OWNED, rel=1e-3)


def test_the_host_waits_for_its_own_cores(small: Small) -> None:
    program = lower(small("dense", "training.offload.parameters=true"))
    assert all(task.blocks_host for task in program.tasks if task.stream == "cores")
