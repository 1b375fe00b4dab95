import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.allocator import MIB, Block, CachingAllocator, Replay, segment_bytes
from simulator.engine.task import Allocation, Task

GB = 10**9
RECORDED = Path(__file__).parent / "allocations"


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # 128,256 x 2,048 in bf16: 501 MiB exactly is 525,336,576 B, and a segment is a multiple of 2 MiB.
        (128256 * 2048 * 2, 525336576, 502 * MIB),
    ],
)
def test_sizes_and_segments_by_hand(asked: float, block: int, segment: int) -> None:
    allocator = CachingAllocator()
    taken = allocator.take(asked)
    # A rest of at most 1 MiB stays with a large block.
    assert taken.size == (segment if 0 < segment - block <= MIB and block > MIB else block)
    assert allocator.reserved_bytes == segment == segment_bytes(block)


def test_the_smallest_block_that_fits_serves_and_is_split_where_over_1_mib_is_left() -> None:
    allocator = CachingAllocator()
    large, fence, medium = (allocator.take(size * MIB) for size in (64, 10, 32))
    allocator.give(large)
    allocator.give(medium)
    first = allocator.take(30 * MIB)
    assert (first, first.size) == (medium, 30 * MIB)
    second = allocator.take(63 * MIB)
    assert (second, second.size) == (large, 64 * MIB)
    assert fence.size == 10 * MIB
    assert allocator.reserved_bytes == 106 * MIB


def test_freed_blocks_join_their_neighbours_but_not_another_segment() -> None:
    allocator = CachingAllocator()
    allocator.give(allocator.take(40 * MIB))
    parts = [allocator.take(10 * MIB) for _ in range(4)]
    assert allocator.reserved_bytes == 40 * MIB
    for number in (0, 2, 1, 3):
        allocator.give(parts[number])
    assert allocator.take(40 * MIB).address == parts[0].address
    other = allocator.take(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.give(other)
    allocator.take(41 * MIB)
    assert allocator.reserved_bytes == 122 * MIB


def test_streams_do_not_share_memory() -> None:
    allocator = CachingAllocator()
    allocator.give(allocator.take(GB, "compute"))
    allocator.take(GB, "fsdp_gather")
    assert allocator.reserved_bytes == 2 * segment_bytes(GB)
    allocator.take(GB, "compute")
    assert allocator.reserved_bytes == 2 * segment_bytes(GB)


def test_states_taken_amid_freed_activations_make_the_next_step_reserve_more() -> None:
    step = [Task("forward", "compute", "gemm", 1, allocates=(Allocation("x", "a", 40.0 * MIB),), releases=("x",))]
    replay = Replay(0)
    replay.run(step)
    assert replay.allocator.reserved_bytes == 40 * MIB
    replay.take([Allocation("state", "optimizer", 12.0 * MIB)])
    assert replay.allocator.reserved_bytes == 40 * MIB
    replay.run(step)
    assert replay.allocator.reserved_bytes == 80 * MIB


def test_each_piece_is_a_tensor_of_its_own_and_each_behaviour_has_its_own_sizes() -> None:
    rows = np.array([1.0, 3.0])
    saved = Allocation("x", "a", 32.0 * MIB * rows, pieces=(10.0 * MIB * rows, 22.0 * MIB * rows))
    task = Task("forward", "compute", "gemm", 1, allocates=(saved, Allocation("h", "a", 1e9, tier="ddr")))
    for behaviour, reserved in enumerate((32, 96)):
        replay = Replay(behaviour)
        replay.run([task])
        assert replay.allocator.reserved_bytes == reserved * MIB
        assert replay.allocator.allocated_bytes == reserved * MIB


@pytest.mark.parametrize(
    ("name", "takes", "segments", "reserved_bytes"),
    [
        ("llama8b-fsdp2-first-step", 7256, 275, 70_764_199_936),
        ("llama8b-fsdp2-lora-first-step", 9329, 241, 35_741_761_536),
    ],
)
def test_a_recorded_run_gets_the_segments_that_pytorch_took(
    name: str, takes: int, segments: int, reserved_bytes: int
) -> None:
    allocator, grown = CachingAllocator(), 0
    taken: list[Block] = []
    with gzip.open(RECORDED / f"{name}.txt.gz", "rt") as lines:
        events = [line.split() for line in lines if line.startswith(("take", "give"))]
    for verb, number, *rest in events:
        before = allocator.reserved_bytes
        if verb == "give":
            allocator.give(taken[int(number)])
            continue
        taken.append(allocator.take(int(number), rest[0]))
        segment = int(rest[2]) if len(rest) > 1 else 0
        grown += segment > 0
        assert allocator.reserved_bytes - before == segment, f"take {len(taken) - 1}"
    assert (len(taken), grown, allocator.reserved_bytes) == (takes, segments, reserved_bytes)


Requests = list[tuple[int, str, int]]


@st.composite
def requests(draw: st.DrawFn) -> Requests:
    """(bytes, stream, which of those held is freed afterwards, none where there are fewer)."""
    sizes = st.one_of(st.integers(1, 3000), st.integers(1, 3 * MIB), st.integers(1, 80 * MIB))
    streams = st.sampled_from(["compute", "gather"])
    return draw(st.lists(st.tuples(sizes, streams, st.integers(0, 12)), max_size=60))


def run(allocator: CachingAllocator, wanted: Requests) -> tuple[list[Block], list[tuple[int, int]]]:
    """Blocks still held, and the address and size of every one that was taken."""
    held: list[Block] = []
    log = []
    for size, stream, freed in wanted:
        block = allocator.take(size, stream)
        assert block.size >= size
        held.append(block)
        log.append((block.address, block.size))
        spans = sorted((b.address, b.address + b.size) for b in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.allocated_bytes == sum(b.size for b in held) <= allocator.reserved_bytes
        if freed < len(held):
            allocator.give(held.pop(freed))
    return held, log


@given(requests())
def test_blocks_never_overlap_and_freeing_everything_leaves_whole_segments(wanted: Requests) -> None:
    allocator = CachingAllocator()
    held, _ = run(allocator, wanted)
    reserved = allocator.reserved_bytes
    for block in held:
        allocator.give(block)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, reserved)
    free = allocator.free_blocks()
    assert sum(block.size for block in free) == reserved
    assert all(block.left is None and block.right is None for block in free)


@given(requests())
def test_replays_are_deterministic(wanted: Requests) -> None:
    assert run(CachingAllocator(), wanted)[1] == run(CachingAllocator(), wanted)[1]
