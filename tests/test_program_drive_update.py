from dataclasses import replace

import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.simulation import Part, Simulation
from simulator.program.drive_update import on_drives, sub_groups
from simulator.program.offload import OnDrives
from simulator.program.stage import StageProgram
from simulator.program.update import Owned

OWNED = 71_312_384 / 16
"""Trained elements of the small dense model, shared by 16 ranks."""
NVME = "training.offload.optimizer=nvme"
MILLION = "training.offload.nvme.sub_group_elements=1000000"
READ, WRITE = "training.offload.nvme.pipeline_read=true", "training.offload.nvme.pipeline_write=true"


def moved(program: StageProgram, kind: str, phase: str = "optimizer") -> list[float]:
    return [float(t.collective.wire_bytes) for t in program.tasks if t.kind == kind and t.phase == phase]


def held(program: StageProgram, tier: str) -> dict[str, float]:
    return account(program.tasks, [*program.resident, *program.born], 1)[tier].breakdown(0)


def test_a_sub_group_ends_with_the_tensor_that_fills_it() -> None:
    tensors = [Owned(elements, matrix=False) for elements in (4.0, 3.0, 5.0, 9.0, 1.0)]
    assert sub_groups(tensors, 7) == [7.0, 14.0, 1.0]
    assert sub_groups(tensors, 100) == [22.0]
    assert sub_groups([], 7) == []


def test_a_share_of_the_sub_groups_is_on_drives() -> None:
    half = OnDrives(0.5, 1, False, False, False, 1.0, 1)
    assert on_drives([1.0] * 4, half) == [False, True, False, True]
    assert on_drives([1.0] * 2, replace(half, share=1.0)) == [True, True]


def test_states_and_gradients_are_read_and_states_written(small: Small) -> None:
    program = lower(small("dense", NVME))
    assert sum(moved(program, "drive_read")) == pytest.approx(16 * OWNED, rel=1e-3)
    assert sum(moved(program, "drive_write")) == pytest.approx(12 * OWNED, rel=1e-3)
    assert sum(moved(program, "drive_write", "backward")) == pytest.approx(4 * OWNED, rel=1e-3)
    assert sum(moved(program, "cpu_optimizer")) == pytest.approx(28 * OWNED, rel=1e-3)
    assert sum(moved(program, "cpu_pass")) == pytest.approx(16 * OWNED, rel=1e-3)
    assert sum(moved(program, "copy_in")) == pytest.approx(2 * OWNED, rel=1e-3)


def test_the_drives_hold_states_and_gradients_and_the_host_buffers(small: Small) -> None:
    program = lower(small("dense", NVME))
    assert held(program, "nvme") == {
        "optimizer": pytest.approx(12 * OWNED, rel=1e-3),
        "gradients": pytest.approx(4 * OWNED, rel=1e-3),
    }
    # One sub-group: four buffers of 17.8 MB, and 8.9 MB of bf16 gradients, each pinned as a power of two.
    assert held(program, "ddr") == {"staging buffers": 4 * 2**25, "gradients": 2**24}


def test_pipelines_take_buffers_for_what_they_read_and_write(small: Small) -> None:
    counts = {
        settings: sum(
            len(a.pieces) for a in lower(small("dense", NVME, MILLION, *settings)).resident if "buffers" in a.key
        )
        for settings in ((), (READ,), (WRITE,), (READ, WRITE))
    }
    assert counts == {(): 4, (READ,): 8, (WRITE,): 8, (READ, WRITE): 12}


def times(small: Small, *settings: str) -> dict[str, tuple[int, int]]:
    """Begin and end of what drives and cores do in the update, by name."""
    program = lower(small("dense", NVME, MILLION, *settings))
    (ran,) = Simulation(Part(program.tasks, 1)).run()
    chosen = [i for i, t in enumerate(program.tasks) if t.phase == "optimizer" and t.stream != "compute"]
    found: dict[str, tuple[int, int]] = {}
    for i in chosen:
        name = program.tasks[i].name
        name = f"{name} {sum(one.startswith(name) for one in found)}" if "cpu" in name else name
        found[name] = int(ran.begin_ns[i, 0]), int(ran.end_ns[i, 0])
    return found


def test_without_pipelines_one_thing_happens_after_the_other(small: Small) -> None:
    found = times(small)
    for number in range(3):
        read, write = found[f"read sub-group {number}"], found[f"write sub-group {number}"]
        assert read[1] <= found[f"scale gradients on cpu {number}"][0]
        assert found[f"cast parameters on cpu {number}"][1] <= write[0]
        assert write[1] <= found[f"read sub-group {number + 1}"][0]


def test_pipelines_read_ahead_and_write_behind(small: Small) -> None:
    plain, found = times(small), times(small, READ, WRITE)
    assert found["read sub-group 1"][0] < found["cpu AdamW 0"][0] < found["read sub-group 1"][1]
    assert found["write sub-group 0"][0] < found["cpu AdamW 1"][0]
    # Buffers for three: the fourth is read once the first is written.
    assert found["read sub-group 3"][0] >= found["write sub-group 0"][1]
    # The host waits for the write before the last one.
    assert found["scale gradients on cpu 2"][0] >= found["write sub-group 0"][1]
    assert max(end for _, end in found.values()) < max(end for _, end in plain.values())


def test_nothing_is_read_before_the_gradients_are_written(small: Small) -> None:
    program = lower(small("dense", NVME))
    (ran,) = Simulation(Part(program.tasks, 1)).run()
    written = max(i for i, t in enumerate(program.tasks) if t.kind == "drive_write" and t.phase == "backward")
    read = next(i for i, t in enumerate(program.tasks) if t.kind == "drive_read")
    assert ran.begin_ns[read, 0] >= ran.end_ns[written, 0]


def test_half_of_the_sub_groups_stay_in_host_memory(small: Small) -> None:
    program = lower(small("dense", NVME, MILLION, "training.offload.nvme.share=0.5"))
    far = sum(moved(program, "drive_read")) / 16
    assert 0.3 * OWNED < far < 0.7 * OWNED
    assert held(program, "nvme")["optimizer"] == pytest.approx(12 * far)
    assert held(program, "ddr")["optimizer"] == pytest.approx(12 * (OWNED - far), rel=1e-3)
    assert sum(moved(program, "cpu_optimizer")) == pytest.approx(28 * OWNED, rel=1e-3)


def test_shards_on_drives_are_read_for_each_gather_and_written_by_the_update(small: Small) -> None:
    program = lower(small("dense", NVME, "training.offload.parameters=nvme"))
    assert not any(a.kind == "parameters" and a.tier == "hbm" for a in program.resident)
    assert held(program, "nvme")["parameters"] == pytest.approx(2 * OWNED, rel=1e-3)
    read = sum(moved(program, "drive_read", "forward")) + sum(moved(program, "drive_read", "backward"))
    # Layers twice, the embedding and head once: they stay gathered.
    layers = 4 * 16_779_264 / 16
    assert read == pytest.approx(2 * (OWNED + layers), rel=1e-3)
    assert sum(moved(program, "drive_write")) == pytest.approx((12 + 2) * OWNED, rel=1e-3)
    assert moved(program, "copy_in") == []


def test_a_unit_is_read_once_a_copy_has_left_its_buffer(small: Small) -> None:
    program = lower(small("dense", NVME, "training.offload.parameters=nvme"))
    copies = [i for i, t in enumerate(program.tasks) if t.name.startswith("shards") and t.name.endswith(" in")]
    reads = [i for i, t in enumerate(program.tasks) if t.name.startswith("shards") and t.name.endswith(" read")]
    assert [program.tasks[i].deps for i in reads[:2]] == [(), ()]
    assert [program.tasks[i].deps for i in reads[2:]] == [(i,) for i in copies[:-2]]


def test_direct_reads_need_no_copies(small: Small) -> None:
    ways = NVME, "training.offload.parameters=nvme", "training.offload.nvme.direct=true"
    program = lower(small("dense", *ways))
    assert moved(program, "copy_in", "forward") == []
    assert all("host memory" not in t.collective.link_busy_ns for t in program.tasks if t.name.startswith("shards"))


def test_shards_in_host_memory_stay_there(small: Small) -> None:
    program = lower(small("dense", NVME, "training.offload.parameters=true"))
    assert held(program, "ddr")["parameters"] == 2**24
    assert sum(moved(program, "copy_in", "forward")) == pytest.approx(2 * OWNED, rel=1e-3)
    assert moved(program, "drive_read", "forward") == []


@pytest.mark.parametrize("shards", ["false", "true", "nvme"])
@pytest.mark.parametrize("kind", ["dense", "mixture", "latent"])
def test_every_program_gives_back_what_it_takes(small: Small, kind: str, shards: str) -> None:
    program = lower(small(kind, NVME, f"training.offload.parameters={shards}"), 2)
    assert all(abs(ledger.left_bytes).max() == 0 for ledger in account(program.tasks, (), 1).values())
