import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from simulator.routing import RoutingError, read_trace
from simulator.routing.torch_file import Tensor, TorchFile

SAVED = Path(__file__).parent / "traces"


def opened(path: Path) -> TorchFile:
    return TorchFile(path, io.BytesIO(path.read_bytes()))


def archive(folder: Path, program: bytes, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    path = folder / "hostile.pt"
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x/data.pkl", program)
        for name, content in entries.items():
            file.writestr(f"x/data/{name}", content)
    return path


def refused(path: Path) -> str:
    with pytest.raises(RoutingError) as caught:
        read_trace(path)
    (problem,) = caught.value.problems
    return problem.message


def tensor_program(size: int = 2, shape: tuple[int, ...] = (1, 2), strides: tuple[int, ...] = (2, 1)) -> bytes:
    """``{"logical_count": tensor}`` as torch writes it, by hand."""
    number = lambda n: b"J" + n.to_bytes(4, "little", signed=True)  # noqa: E731
    text = lambda t: b"X" + len(t).to_bytes(4, "little") + t.encode()  # noqa: E731
    many = lambda ns: b"(" + b"".join(map(number, ns)) + b"t"  # noqa: E731
    storage = b"(" + text("storage") + b"ctorch\nIntStorage\n" + text("0") + text("cpu") + number(size) + b"tQ"
    arguments = b"(" + storage + number(0) + many(shape) + many(strides) + b"\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02}" + text("logical_count") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def test_what_real_torch_saved_comes_back():
    file = opened(SAVED / "stat.pt")
    assert list(file.content) == ["rank", "logical_count", "average_utilization_rate_over_window"]
    counts = file.content["logical_count"]
    assert counts == Tensor("0", "i8", 48, 0, (2, 4, 6), (24, 6, 1))
    assert file.array(counts).tolist() == [
        [[layer * (expert + step) for expert in range(6)] for layer in range(4)] for step in range(2)
    ]


def test_a_view_is_read_with_its_strides():
    record = opened(SAVED / "per_token.pt").content["records"][0]
    picks = record["topk_ids_of_layer"]
    assert (picks.shape, picks.strides, picks.storage_items) == ((4, 5, 3), (27, 3, 1), 4 * 9 * 3)
    assert opened(SAVED / "per_token.pt").array(picks)[1, 1].tolist() == [6, 1, -1]
    assert (record["input_ids"], record["extend_seq_lens"]) == ([11, 12, 13, 14, 0], [5])
    assert record["misc_objects"] == [{"layer_id": 1, "num_tokens_per_rdma_rank": None}]


def test_a_file_written_by_hand_is_read(tmp_path):
    path = archive(tmp_path, tensor_program(), **{"0": np.array([3, 4], "<i4").tobytes()})
    assert read_trace(path).table.counts.tolist() == [[3, 4]]


class Hostile:
    def __init__(self, function: object, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return self._call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "payload",
    [
        Hostile(os.system, "touch ran"),
        Hostile(eval, "1"),
        {"logical_count": Hostile(os.mkdir, "ran")},
        Hostile(getattr, "", "join"),
    ],
)
def test_a_pickle_that_calls_something_is_refused_and_nothing_runs(tmp_path, monkeypatch, payload, protocol):
    monkeypatch.chdir(tmp_path)
    message = refused(archive(tmp_path, pickle.dumps(payload, protocol=protocol)))
    assert message.startswith("is refused: its pickle ")
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.pt"]


def test_the_refusal_names_what_was_named(tmp_path):
    message = refused(archive(tmp_path, pickle.dumps(Hostile(os.system, "x"), protocol=2)))
    assert message == "is refused: its pickle names posix.system, which is neither a tensor nor a container"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02ctorch\nload\n.", "names torch.load"),
        (b"\x80\x02ccollections\nCounter\n.", "names collections.Counter"),
        (b"\x80\x02ccollections\nOrderedDict\nU\x01atR.", "instruction SHORT_BINSTRING"),
        (b"\x80\x02}U\x01ab.", "instruction SHORT_BINSTRING"),
        (b"\x80\x02}}b.", "instruction BUILD"),
        (b"\x80\x02K\x01)R.", "calls something that is not a function by name"),
        (b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.", "calls collections.OrderedDict in a way"),
        (b"\x80\x02(i\nos\nsystem\n.", "instruction INST"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x02P1\n.", "instruction PERSID"),
    ],
)
def test_every_other_instruction_or_name_is_refused(tmp_path, program, message):
    assert message in refused(archive(tmp_path, program))


@pytest.mark.parametrize(
    "program",
    [b"", b"\x80\x02", b"\x80\x02.", b"\x80\x02h\x05.", b"\x80\x02K\x01a.", b"\x80\x02]K\x01K\x01s.", b"\x80\x02e.",
     b"\x80\x02X\xff\xff\xff\x7fa.", b"\x80\x02}]K\x01s.", b"\x80\x02K\x01Q."],
)  # fmt: skip
def test_a_broken_pickle_is_refused(tmp_path, program):
    assert "its pickle breaks off or makes no sense" in refused(archive(tmp_path, program))


def test_memory_does_not_follow_a_memo_index(tmp_path):
    # Unpicklers that keep their memo in a list would now allocate 32 GB.
    assert "logical_count" in refused(archive(tmp_path, b"\x80\x02}r\xff\xff\xff\x7f."))


def test_compressed_entries_are_refused(tmp_path):
    message = refused(archive(tmp_path, tensor_program(), zipfile.ZIP_DEFLATED))
    assert message == "has compressed or encrypted entries, which torch.save never writes"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            tensor_program(size=2, shape=(1, 3), strides=(3, 1)),
            "has a tensor of shape (1, 3) that its 2 numbers do not",
        ),
        (
            tensor_program(size=2, shape=(2, 2), strides=(2, 1)),
            "has a tensor of shape (2, 2) that its 2 numbers do not",
        ),
        (tensor_program(shape=(1000, 1000), strides=(0, 0)), "has a tensor of shape (1000, 1000) that its 2 numbers"),
        (tensor_program(size=1, shape=(1, 1)), "has 8 bytes at data/0, expected at most 4"),
        (tensor_program(shape=(-1, 2)), "it has a tensor with an impossible shape"),
        (tensor_program().replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x007"), "has no data/7"),
    ],
)
def test_tensors_stay_within_their_storage(tmp_path, program, message):
    assert message in refused(archive(tmp_path, program, **{"0": np.array([3, 4], "<i4").tobytes()}))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rest", pickle.dumps({"logical_count": [1]}), b"\x80\x02}."])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "recorder.pt"
    path.write_bytes(content)
    assert refused(path).startswith("is not a zip archive with a data.pkl")


def test_damage_is_found_by_the_checksum(tmp_path):
    path = archive(tmp_path, tensor_program(), **{"0": np.array([3, 4], "<i4").tobytes()})
    path.write_bytes(path.read_bytes().replace(b"\x03\x00\x00\x00\x04", b"\x03\x00\x00\x00\x05"))
    assert "is damaged at data/0" in refused(path)
