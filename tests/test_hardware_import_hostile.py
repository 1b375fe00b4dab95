"""No file makes an importer fail with anything but a message: cut, mutated, binary, empty, endless."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.documents import InvalidDocument
from simulator.hardware.description import describe
from simulator.hardware.importers import import_topology, importers
from simulator.hardware.topology import Topology

DUMPS = sorted((Path(__file__).parent / "data" / "topologies").iterdir())
SHARED = Path(__file__).parents[1].parent / "shared" / "facts" / "topologies"
ORIGINALS = sorted(path for path in SHARED.glob("*.*") if path.suffix != ".md") if SHARED.is_dir() else []


def read(path: Path) -> Topology | None:
    """What is read and can be told about, or None where the file is refused with problems that name it."""
    try:
        topology = import_topology(path)
    except InvalidDocument as error:
        problems = error.problems
    else:
        describe(topology)
        return topology
    assert problems
    assert all(problem.file == str(path) and problem.message for problem in problems)
    return None


def mutated(data: bytes, seed: int) -> bytes:
    """*data* after one to eight edits: a byte, a line gone, doubled or swapped, a piece moved, a number changed."""
    draw = random.Random(seed)
    lines = data.split(b"\n")
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(lines))
        kind = draw.randrange(6)
        if kind == 0 and lines[at]:
            spot = draw.randrange(len(lines[at]))
            lines[at] = lines[at][:spot] + bytes([draw.randrange(256)]) + lines[at][spot + 1 :]
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif kind == 2:
            lines.insert(at, lines[draw.randrange(len(lines))])
        elif kind == 3:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 4:
            lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
        else:
            digits = [i for i, byte in enumerate(lines[at]) if 48 <= byte < 58]
            if digits:
                spot = draw.choice(digits)
                lines[at] = lines[at][:spot] + str(draw.choice([0, 1, 7, 99, 10**9])).encode() + lines[at][spot + 1 :]
    return b"\n".join(lines)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_one_importer_recognises_each_dump(dump):
    text = dump.read_text().replace("\x1b[4m", "").replace("\x1b[0m", "")
    assert sum(module.recognises(text) for module in importers()) == 1


@pytest.mark.parametrize("dump", DUMPS + ORIGINALS, ids=lambda path: path.name)
def test_cut_at_any_line(dump, tmp_path):
    lines = dump.read_bytes().split(b"\n")
    path = tmp_path / dump.name
    step = max(1, len(lines) // 60)
    for end in range(0, len(lines), step):
        path.write_bytes(b"\n".join(lines[:end]))
        read(path)


@pytest.mark.parametrize("dump", DUMPS + ORIGINALS, ids=lambda path: path.name)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_mutations(dump, seed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"mutated-{dump.name}"
    path.write_bytes(mutated(dump.read_bytes(), seed))
    read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; known: "),
        (b" \n\n", "is empty; known: "),
        (b"\x7fELF\0\0\0", "is a binary file"),
        (b"hello\n", "is in no format known; known: "),
        (b"\xff\xfe" + "hello".encode("utf-16-le"), "is in no format known"),
        (b"x" * 16_000_001, "larger than 16 MB"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, content, says):
    path = tmp_path / "dump"
    path.write_bytes(content)
    with pytest.raises(InvalidDocument) as refused:
        import_topology(path)
    assert says in str(refused.value)


def test_folders_devices_and_missing_files_are_refused(tmp_path):
    for path, says in (
        (tmp_path, "is a folder"),
        (Path("/dev/zero"), "not a regular"),
        (tmp_path / "no", "no such file"),
    ):
        with pytest.raises(InvalidDocument) as refused:
            import_topology(path)
        assert says in str(refused.value)


def test_a_redirection_of_power_shell_is_read(tmp_path):
    dump = next(path for path in DUMPS if path.name == "nvidia-smi-switch.txt")
    path = tmp_path / "dump.txt"
    path.write_bytes(dump.read_text().replace("\n", "\r\n").encode("utf-16"))
    assert import_topology(path) == import_topology(dump)


@pytest.mark.skipif(not ORIGINALS, reason="the published dumps that the importers were written for are not here")
@pytest.mark.parametrize("dump", ORIGINALS, ids=lambda path: path.name)
def test_every_published_dump_is_imported(dump):
    topology = read(dump)
    assert topology is not None
    assert topology.of("accelerator") or topology.of("host")
